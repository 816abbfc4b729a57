"""The Disk seam and the file formats on it. Imports no other room of storage."""
