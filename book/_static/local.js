// Where this machine's JupyterLab is. Nowhere, on the published site; `make start` serves its own answer at this path.
export const jupyterlab = null;
