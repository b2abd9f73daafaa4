"""What a job can run: each operation is one module, callable in place or by a worker."""
