"""Long runs that ship with a receipt: what ``deqbook reproduce`` runs."""
