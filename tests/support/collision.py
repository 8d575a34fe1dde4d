"""An equation without any fast form, and the same below a class whose fast forms are those of another one."""

from dem_apps import AdaDEM, EntropyObjective
from dem_apps.entropy import probabilities


class Collision(EntropyObjective):
    """−log Σ p², an equation without any fast form."""

    def values(self, logits, dim, class_mask, _batch):
        """One value per element."""
        return -probabilities(logits, dim, class_mask=class_mask).square().sum(dim).log()


class CollisionBelowAdaDEM(AdaDEM):
    """The same below a class whose fast forms are those of another equation."""

    values = Collision.values
