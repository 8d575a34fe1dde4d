"""Many trainings: searches and grids whose runs are processes of their own."""
