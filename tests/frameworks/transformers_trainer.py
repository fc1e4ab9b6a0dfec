"""Hugging Face Trainer: three steps of a small Llama on CPUs."""

import sys
import tempfile

import torch
import torch.distributed as dist
from framework_report import bits, report
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(12) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    named = {"ddp_backend": "gloo"}
    if sys.argv[1] != "gloo":  # Trainer refuses other names, and takes a group that exists
        dist.init_process_group(sys.argv[1])
        named = {}
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, **size))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=3,
            per_device_train_batch_size=4,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            **named,
        )
        trained = Trainer(model, settings, train_dataset=Numbers()).train()
    report(loss=trained.training_loss, weights=bits(model.parameters()))
    dist.destroy_process_group()


main()
