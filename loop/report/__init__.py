"""What a loop did, as one HTML file and as JSON: the tree of candidates, gains with bounds, spend, what was learnt."""
