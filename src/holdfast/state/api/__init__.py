"""What programs see of state: descriptors, and the interfaces of the handles."""
