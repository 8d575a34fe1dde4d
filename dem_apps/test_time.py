"""Test-time adaptation: a trained network adapts to unlabelled images, batch by batch, while it predicts them.

Shapes: B images, C classes, H × W elements of an image's logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dem_apps.entropy import Mask
from dem_apps.errors import InputError, one_of
from dem_apps.objective import EntropyObjective
from dem_apps.reduction import alone
from dem_apps.test_time_methods import build_method
from dem_apps.test_time_methods.copies import State
from dem_apps.test_time_methods.learner import Learner, OptimizerBuilder
from dem_apps.test_time_methods.method import checked_images, fitted_mask
from dem_apps.test_time_methods.network import AdaptedNetwork, find_logits

PREDICT = ("before", "after")


class TestTimeAdapter:
    """A trained network that adapts to the images it predicts.

    It serves an nn.Module with ordinary parameters on one device, but no ScriptModule, DistributedDataParallel, lazy or
    exported network. Each process adapts for itself, and one thread at a time. In float16 and bfloat16 what learns is
    kept in float32, and the network's own weights are rounded from it; float16 has no number below 6e-8 for gradients
    of means over many pixels, so use bfloat16 or autocast there.

    The model is adapted in place: ``adapter.model`` is the given object, and its ``state_dict()`` holds the adapted
    weights under their old names. It runs in ``eval()`` mode (dropout is off) except that batch norm normalises by the
    batch, and what does not learn has ``requires_grad`` False; :meth:`close` restores these flags.

    Args:
        model: any module with logits (B, C) or (B, C, H, W).
        method: of :data:`dem_apps.test_time_methods.METHODS`; each class tells its paper and options.
        objective: minimised; a name of :func:`dem_apps.build_objective`.
            ``none``, ``bn`` and ``lab`` minimise nothing.
        lr: learning rate of a named optimiser, or of a class.
        optimizer: ``sgd`` (momentum 0.9), ``adam``, ``adamw``, a class of torch, or a function of the parameters that
            makes one, with a rate of its own.
        reduction: ``mean`` over elements, or ``balanced``, the mean within each predicted class and then over classes.
        parameters: that learn: ``normalisation`` (scale and shift of PyTorch's batch, instance, group, layer and RMS
            norms and their subclasses), ``all``, or a regular expression searched in their names. None is the method's
            own: ``all`` for ``cotta``, else ``normalisation``.
        batch_norm: ``batch``, by a share of the batch's statistics while the stored ones stay; ``stored``, by these.
            None is the method's own: ``batch`` where something learns.
        bn_alpha: of ``batch``: the share of the batch's statistics, from 0 to 1; 1 is prediction-time batch norm (Nado
            et al., arXiv:2006.10963) and Tent as published, None is 0.1 (see :mod:`dem_apps.test_time_methods.bn`).
        predict: ``before`` returns the logits that the update was made from, as Tent does; ``after`` predicts the
            batch again.
        episodic: every call begins with :meth:`reset`.
        num_classes: C, or None to take it from the first logits.
        logits_of: takes the logits out of what the model returns. None finds a tensor, ``.logits``, or one of the keys
            ``logits``, ``main`` and ``out``.
        marginals: where AdaDEM's class marginals begin: ``start``, at the predictions of the first batch that is learnt
            from, or those of :meth:`start`; ``uniform``, at 1/C as published, from where a few batches hardly move them
            (:meth:`dem_apps.EntropyObjective.start`). None is ``start``.
        objective_options: of the named objective, such as ``{"momentum": 0.05}``.
        seed: of all random draws; the same on every device.
        options: of the method, see :func:`dem_apps.test_time_methods.method_options`.

    Raises:
        ValueError: an unknown name, option or value, and a network in which nothing would learn.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 5, 1))
    >>> adapter = TestTimeAdapter(model, method="tent", objective="adadem", lr=1e-3, reduction="balanced")
    >>> adapter(torch.rand(2, 3, 16, 16)).shape
    torch.Size([2, 5, 14, 14])
    >>> list(adapter.learning)
    ['1.weight', '1.bias']
    >>> adapter.reset()
    """

    #: The name begins with Test, and pytest shall not collect it.
    __test__ = False

    def __init__(
        self,
        model: nn.Module,
        method: str = "tent",
        objective: str = "entropy",
        lr: float = 1e-3,
        optimizer: str | OptimizerBuilder = "sgd",
        reduction: str = "mean",
        *,
        parameters: str | None = None,
        batch_norm: str | None = None,
        bn_alpha: float | None = None,
        predict: str = "before",
        episodic: bool = False,
        num_classes: int | None = None,
        logits_of: Callable[[Any], Any] | None = None,
        marginals: str | None = None,
        objective_options: dict[str, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.predict = one_of("predict", predict, PREDICT)
        self.method = method
        self.episodic = episodic
        self._method = build_method(method, **options)
        statistics = batch_norm or self._method.batch_norm
        learns = self._method.parameters
        if learns is not None:
            learns = parameters or learns
        with _gradients():
            network = AdaptedNetwork(model, learns, statistics, logits_of or find_logits, bn_alpha)
            try:
                self._learner = Learner(
                    network,
                    objective,
                    objective_options or {},
                    optimizer,
                    lr,
                    reduction,
                    num_classes,
                    seed,
                    marginals,
                )
                self._method.begin(self._learner)
            except BaseException:
                network.close()
                raise
        self.model = model  #: the given network
        self.learning = network.learning  #: the parameters that learn, by name
        self.optimizer = self._learner.optimizer  #: None where nothing learns
        #: By which statistics batch norm normalises, and the share of the batch's, of ``batch``; None is the default.
        self.batch_norm = network.batch_norm
        self.bn_alpha = network.bn_alpha
        self._closed = False

    @property
    def predictor(self) -> nn.Module:
        """The network that makes the returned logits.

        It is the teacher of ``cotta``, else :attr:`model`.
        """
        return self._method.predictor(self._learner)

    @property
    def objective(self) -> EntropyObjective:
        """The objective; there is none before the first batch unless ``num_classes`` was given."""
        if self.optimizer is None:
            raise InputError(f"method '{self.method}': minimises nothing, and has no objective")
        return self._learner.objective

    def __call__(self, images: Tensor, mask: Mask = None) -> Tensor:
        """Predict a batch and learn from it, under ``torch.no_grad()`` and ``inference_mode()`` too.

        Args:
            images: (B, …), preprocessed for the model, on its device; B may be 1.
            mask: boolean, False where nothing is learnt (padding, an ignored border): (B, H, W) of the images' or the
                logits' size, or (B,) for logits (B, C). Pixels that it leaves out still count in a batch's statistics.

        Returns:
            logits (B, C) or (B, C, H, W) without gradient, of the network's dtype.

        Raises:
            NotFiniteError: the loss, its gradient or what the step made of them is NaN or infinite.
            ValueError: no tensor of images, or one that the network does not take; an output without logits, a mask
                that does not fit.
            With every error the call has changed nothing; under ``episodic`` it has begun anew.
        """
        images = self._given(images)
        with _gradients():
            # a forward under no_grad() may have left weights there without gradients
            torch.clear_autocast_cache()
            if self.episodic:
                self.reset()
            with self._learner.checked():
                logits = self._method.step(self._learner, images, mask)
            if self.predict == "after" and self.optimizer is not None:
                with torch.no_grad():
                    logits = self._method.predict(self._learner, images)
        return logits.detach()

    def start(self, images: Tensor, mask: Mask = None) -> None:
        """Start the objective's class marginals from images, such as a folder's; nothing is learnt.

        Several calls add up, and :meth:`reset` goes back to where they ended. The arguments are those of a call.

        Raises:
            NotFiniteError: a prediction is NaN.
            ValueError: the same as for a call, and a method that minimises nothing.
        """
        images = self._given(images)
        with _gradients():
            if self.optimizer is None:
                raise InputError(
                    f"method '{self.method}': minimises nothing, and has no class marginals to start"
                )
            with torch.no_grad():
                logits = self._learner.logits(images)
            self._learner.start_for_good(logits, fitted_mask(mask, images, logits))

    def reset(self) -> None:
        """Weights and buffers, bit for bit, and optimiser, objective, draws and the method's memory as they began."""
        with _gradients():
            self._learner.reset()
            self._method.reset(self._learner)

    def close(self) -> None:
        """Restore the model's modes and ``requires_grad`` flags; it stays adapted."""
        self._learner.network.close()
        self._closed = True

    def _given(self, images: Any) -> Tensor:
        """Return the images of a call; an InputError after :meth:`close`, or for what are none."""
        if self._closed:
            raise InputError("adapter: is closed, and its model's flags are restored; make another")
        return checked_images("images", images)

    def state_dict(self) -> State:
        """Copies of all that an exact continuation needs but weights that never learn, for ``weights_only=True``."""
        return {
            "method": self.method,
            "learner": copy.deepcopy(self._learner.state_dict()),
            "memory": copy.deepcopy(self._method.state_dict()),
        }

    def load_state_dict(self, state: State) -> None:
        """Continue exactly, in an adapter made with the same model and arguments.

        Raises:
            ValueError: a state of another method, or of a network in which something else learns.
        """
        if state.get("method") != self.method:
            raise InputError(
                f"state: belongs to method '{state.get('method')}', and this adapter has method '{self.method}'"
            )
        with _gradients():
            self._learner.load_state_dict(copy.deepcopy(state["learner"]))
            self._method.load_state_dict(copy.deepcopy(state["memory"]))


@contextmanager
def _gradients() -> Iterator[None]:
    """Gradients are on and new tensors are no inference tensors, in every mode of the caller; no process is asked."""
    with torch.inference_mode(False), torch.enable_grad(), alone():
        yield
