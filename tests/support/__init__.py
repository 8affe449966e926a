"""What tests share: how to wait, how to make rows, and the ways in which a contract is run."""
