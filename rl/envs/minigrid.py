"""MiniGrid (Chevalier-Boisvert et al., NeurIPS 2023): grid worlds that the paper trains on."""

from rl.envs.family import Family

MINIGRID = Family(
    prefixes=("MiniGrid-", "BabyAI-"),
    module="minigrid",
    entry_of="MiniGrid-Empty-Random-5x5-v0",
    wrappers={
        "minigrid.wrappers.FlatObsWrapper": "rl.fast.grid_view:FlatObservation",  # the same numbers
        "minigrid.wrappers.FullyObsWrapper": "minigrid.wrappers:FullyObsWrapper",
        "minigrid.wrappers.ImgObsWrapper": "minigrid.wrappers:ImgObsWrapper",
    },
    # Nine tenths of the return that the Zoo publishes (its benchmark.md). Of Fetch and the others, which are not in it,
    # half of the most that an episode can bring, so that most episodes have to be solved.
    goals={
        "MiniGrid-": 0.5,
        "BabyAI-": 0.5,
        "MiniGrid-DoorKey-5x5-": 0.86,
        "MiniGrid-Empty-Random-5x5-": 0.87,
        "MiniGrid-FourRooms-": 0.51,
        "MiniGrid-GoToDoor-5x5-": 0.47,
        "MiniGrid-KeyCorridorS3R1-": 0.85,
        "MiniGrid-PutNear-6x6-N2-": 0.55,
        "MiniGrid-RedBlueDoors-6x6-": 0.77,
        "MiniGrid-Unlock-": 0.86,
    },
    unit_returns=True,
)
