"""The databases of the tests: servers, connections that are kept, and tables that are swept."""
