"""`thistle stress`: a question becomes a plan; it is carried out rung by rung, and the worst case is written down."""
