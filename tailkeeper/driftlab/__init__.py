"""Simulated request streams for measuring drift detectors. Imports the drift package; nothing but `bench drift` imports it."""
