"""Lightning starts its own processes: it reads MASTER_ADDR, MASTER_PORT and NODE_RANK; the rest are arguments."""

import json
import os
import time

import lightning
import torch

STEPS = int(os.environ.get("STEPS", "30"))
folder = os.environ["SAILOR_CHECKPOINTS"]


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.layers(batch), batch)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Steps(lightning.Callback):
    """Tells every step as a line of JSON."""

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        if trainer.is_global_zero:
            print(json.dumps({"step": trainer.global_step, "loss": float(outputs["loss"])}), flush=True)
        time.sleep(float(os.environ.get("PAUSE_S", "0")))


torch.manual_seed(0)
saving = lightning.pytorch.callbacks.ModelCheckpoint(
    folder, filename="step-{step}", every_n_train_steps=10, save_top_k=-1, auto_insert_metric_name=False
)
trainer = lightning.Trainer(
    max_steps=STEPS,
    num_nodes=int(os.environ["NNODES"]),
    devices=int(os.environ["NPROC_PER_NODE"]),
    accelerator="auto" if torch.cuda.is_available() else "cpu",
    strategy="ddp",
    callbacks=[saving, Steps()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
found = sorted((name for name in os.listdir(folder) if name.endswith(".ckpt")), key=lambda name: int(name[5:-5]))
samples = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=32)
trainer.fit(Autoencoder(), samples, ckpt_path=os.path.join(folder, found[-1]) if found else None)
