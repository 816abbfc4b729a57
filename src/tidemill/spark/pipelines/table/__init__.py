"""The pipeline `table`: records to a table of a database, with their offsets."""
