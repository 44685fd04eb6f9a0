"""Values: pickles, classes under their stable names, and tables of values for people."""
