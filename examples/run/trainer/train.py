"""The Hugging Face Trainer: continues from its last checkpoint, as it does anywhere."""

import json
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS = int(os.environ.get("STEPS", "30"))
folder = os.environ["SAILOR_CHECKPOINTS"]


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        tokens = torch.randint(128, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Steps(TrainerCallback):
    """Tells every step that the Trainer logs as a line of JSON."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            print(json.dumps({"step": state.global_step, "loss": float(logs["loss"])}), flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(float(os.environ.get("PAUSE_S", "0")))


torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=folder,
    max_steps=STEPS,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    logging_steps=1,
    save_steps=10,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = Trainer(model=model, args=arguments, train_dataset=Samples(), callbacks=[Steps()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
trainer.save_model(os.path.join(folder, "final"))
