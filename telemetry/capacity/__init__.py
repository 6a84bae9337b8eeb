"""Study how many GPUs a pool needs: replay its recorded demand with several sizes, in the background."""
