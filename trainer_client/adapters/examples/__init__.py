"""A file each for trainers that need a GPU: run against stubs of the trainers alone, to be copied and adapted."""
