"""Saves what goes into kernels of FLA and of JAX, and what comes out. `kda_check.save` takes tensors of any kernel."""
