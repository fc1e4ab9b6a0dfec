"""Lightning: an epoch with its DDP strategy, whose backend is one argument."""

import sys

import lightning
import torch
from framework_report import bits, report
from lightning.pytorch.strategies import DDPStrategy


class Line(lightning.LightningModule):
    """A linear regression."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        inputs, targets = batch
        loss = ((self.line(inputs) - targets) ** 2).mean()
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_fit_end(self) -> None:
        mean = self.trainer.callback_metrics["loss"].item()
        report(loss=mean, weights=bits(self.parameters()), ranks=self.trainer.world_size)


def main() -> None:
    lightning.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend=sys.argv[1]),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Line(), torch.utils.data.DataLoader(data, batch_size=4))


main()
