"""The event loop and what runs on it: tasks, timers, answers that come later."""
