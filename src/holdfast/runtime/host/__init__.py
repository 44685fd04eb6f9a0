"""What belongs to one host: directories, processes, Unix sockets, shipped files, and the client of a task slot."""
