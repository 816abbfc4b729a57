"""Connections and the APIs behind them. May use every layer below; nothing below imports it."""
