"""The classes that user functions extend, and the contexts they are called with."""
