"""Code shared by rules: preparation of the gradient, cautious steps, and clipping of an update."""

from __future__ import annotations

from layerwise.options.settings import Caution, Hyper
from layerwise.options.values import Scalar, is_infinite, is_number, is_on
from layerwise.rules.arrays import length, scaled
from layerwise.rules.requests import Array, Asking, Functions, Mean, ModelSquares, Now, Squares
from layerwise.rules.scalars import at_least, choose, one_like


def prepare_gradient(xp: Functions, g: Array, h: Hyper, now: Now) -> Asking[Array]:
    """Return the prepared gradient: unscaled, negated, clipped by value, by its own norm, and by the global norm.

    g ← g / g_scale;   g ← −g;   g ← clip(g, low, high);   g ← g / max(1, ‖g‖/c);   g ← g / max(1, √Σ‖g‖²/c)

    Rules without options of clipping begin with it too: their gradients may count in a global norm that clips others.
    Namespaces of engines that prepare gradients themselves replace `ready`.
    """
    if hasattr(xp, "ready"):
        return xp.ready(g)
    if not (is_number(now.g_scale) and now.g_scale == 1):
        g = g / now.g_scale
    if h.maximize:
        g = -g
    if h.value_bounds is not None:
        g = xp.clip(g, *h.value_bounds)
    own, model = getattr(h, "max_grad_norm_per_tensor", None), h.model_bound
    if is_on(own):
        (gg,) = yield (Squares(g),)
        g = _shortened(xp, g, gg, own)
    if is_on(model):
        (gg,) = yield (ModelSquares(g),)
        g = _shortened(xp, g, gg, model)
    return g


FAR = 2.0**64  # a part of a divisor that the dtype may not hold


def _shortened(xp: Functions, g: Array, squares: Scalar, bound: Scalar) -> Array:
    """Return g / max(1, norm/bound), and g itself without a bound: the global norm may be infinite, and inf/inf is
    nan. The norm of finite numbers need not fit their dtype, so g may be divided in two steps.
    """
    if is_infinite(bound):
        return g
    divisor = at_least(xp, length(xp, squares, g) / bound, 1.0)
    farther = length(xp, squares / FAR / FAR, g) / bound
    apart = farther > 2.0**36
    g = scaled(choose(xp, apart, 1 / FAR, one_like(xp, farther)), g)
    return g / choose(xp, apart, farther, divisor)


LEAST_SHARE = 1e-3  # the dtype of the elements, in which fewer may be counted


def cautious(xp: Functions, u: Array, g: Array, h: Caution) -> Asking[tuple[Array, dict[str, Scalar]]]:
    """Return u where its sign is the gradient's, and 0 elsewhere, divided by the fraction of such elements; and the
    fraction.

    Signs are compared, because u·g of small numbers may be 0. A nan stays nan. Without the option, u is unchanged.
    """
    if not h.caution:
        return u, {}
    agrees = xp.where(((u > 0) & (g > 0)) | ((u < 0) & (g < 0)), xp.ones_like(u), 0 * u)
    (share,) = yield (Mean(agrees),)
    size = at_least(xp, share, LEAST_SHARE)
    return u * agrees / size, {"agreeing": share}


def clip_of(xp: Functions, rms: Scalar, threshold: Scalar) -> Scalar:
    """Return the factor that reduces an update of this root mean square to the threshold: 1 / max(1, RMS/d)."""
    return 1.0 / at_least(xp, rms / threshold, 1.0)
