"""Layer planning: which package lies in which layer, and what users download night after night."""
