"""The start of Spark's JVM: which Java, with which classes already loaded."""
