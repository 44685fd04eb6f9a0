"""Keys: their stored form, their key groups, and the subtasks that own these."""
