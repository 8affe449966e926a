"""How a worker comes by its jobs, and writes down what became of them."""
