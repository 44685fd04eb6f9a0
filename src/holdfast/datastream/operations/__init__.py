"""What the methods of streams do: checks of functions and options, and operations that are made of others."""
