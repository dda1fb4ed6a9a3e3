"""Squared distances."""

from kernelmesh.numerics.compiled.jit import Matrix, OwnMatrix, Vector, compile_on_first_call

__all__ = ["pairwise_squares", "repair_squares"]


# Allow reordered and fused sums, so that the inner loop can use vector registers.
@compile_on_first_call(fastmath={"reassoc", "contract"})
def pairwise_squares(left: Matrix, right: Matrix, scale: float, out: OwnMatrix) -> None:
    """out[i, j] = scale · ‖left_i − right_j‖², computed from the differences."""
    width = left.shape[1]
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            total = 0.0
            for k in range(width):
                gap = left[i, k] - right[j, k]
                total += gap * gap
            out[i, j] = scale * total


@compile_on_first_call(fastmath={"reassoc", "contract"})
def repair_squares(
    left: Matrix, right: Matrix, left_squares: Vector, right_squares: Vector, scale: float, out: OwnMatrix
) -> None:
    """Turn inner products in `out` into scaled squared distances, recomputed from the coordinates if digits cancel.

    ‖x‖² + ‖z‖² − 2 xᵀz loses all digits of small distances, and points that nearly coincide decide whether a Gram
    matrix can be inverted.
    """
    width = left.shape[1]
    for i in range(left.shape[0]):
        for j in range(right.shape[0]):
            size = left_squares[i] + right_squares[j]
            square = size - 2.0 * out[i, j]
            if square < 1e-5 * size:
                square = 0.0
                for k in range(width):
                    gap = left[i, k] - right[j, k]
                    square += gap * gap
            out[i, j] = scale * square
