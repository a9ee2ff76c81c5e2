"""The parts of scripts/on-gpu; nothing else imports them."""
