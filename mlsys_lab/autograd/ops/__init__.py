"""Operations by family: each returns its result and, per operand, an edge with the vector-Jacobian product."""
