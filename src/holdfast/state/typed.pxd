# No types of C: the loops over elements, and the methods of typed handles, are compiled as they are.
