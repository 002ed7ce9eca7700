"""One reader a format. To add one: a class with `name`, `looks_for`, `sniff` and `read`, and its name here."""

from isocompute.logs.base import Reader
from isocompute.logs.readers.console_dicts import OpenRLHF, PipelineRL, SkyRL
from isocompute.logs.readers.nemo_rl import NemoRL
from isocompute.logs.readers.prime_rl import PrimeRL
from isocompute.logs.readers.tables import Table
from isocompute.logs.readers.tensorboard import TensorBoard
from isocompute.logs.readers.tinker import Tinker
from isocompute.logs.readers.trackio import Trackio
from isocompute.logs.readers.trl_console import TrlConsole
from isocompute.logs.readers.trl_state import TrlState
from isocompute.logs.readers.verl_console import VerlConsole
from isocompute.logs.readers.verl_file import VerlFile
from isocompute.logs.readers.verl_rollouts import VerlRollouts
from isocompute.logs.readers.wandb_offline import WandbOffline

__all__ = ["READERS"]

READERS: tuple[Reader, ...] = (
    VerlConsole(),
    VerlFile(),
    VerlRollouts(),
    TrlState(),
    TrlConsole(),
    PrimeRL(),
    OpenRLHF(),
    SkyRL(),
    NemoRL(),
    PipelineRL(),
    Tinker(),
    TensorBoard(),
    WandbOffline(),
    Trackio(),
    Table(),
)
