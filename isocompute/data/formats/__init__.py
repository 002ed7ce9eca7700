"""One reader a format. To add one: a class with `name`, `looks_for`, `sniff` and `read`, and its name here."""

from isocompute.data.formats.console_dicts import OpenRLHF, PipelineRL, SkyRL
from isocompute.data.formats.nemo_rl import NemoRL
from isocompute.data.formats.prime_rl import PrimeRL
from isocompute.data.formats.tables import Table
from isocompute.data.formats.tensorboard import TensorBoard
from isocompute.data.formats.tinker import Tinker
from isocompute.data.formats.trackio import Trackio
from isocompute.data.formats.trl_console import TrlConsole
from isocompute.data.formats.trl_state import TrlState
from isocompute.data.formats.verl_console import VerlConsole
from isocompute.data.formats.verl_file import VerlFile
from isocompute.data.formats.verl_rollouts import VerlRollouts
from isocompute.data.formats.wandb_offline import WandbOffline
from isocompute.data.logs.base import Reader

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
