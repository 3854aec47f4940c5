"""How polynomials of `microkernels.vector` are fitted, and how far its functions err."""
