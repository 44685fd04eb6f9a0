"""The operators of transformations: they process batches and emit batches."""
