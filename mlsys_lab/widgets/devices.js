// The form that chooses a device and what it is connected by. Needs axes.js.

// Reads `devices`, `device`, `node` and `network` of the model; `node` is null for the device's own.
function deviceForm(model, change) {
  const devices = model.get("devices");
  const chosen = () => devices.find((one) => one.name === model.get("device")) ?? devices[0];
  const device = menu("Device", devices.map(({ name }) => [name, name]), (name) => change({ device: name, node: null }));
  const node = numberField("devices a node", { min: 1, step: 1 }, (value) => change({ node: value }));
  const network = numberField("network, GB/s", { min: 0 }, (value) => change({ network: value }));

  // The machine at a precision; throws one line for a peak that there is not and for what cannot be.
  function machine(precision) {
    const { peaks, machine: limits } = chosen();
    if (typeof peaks[precision] === "string") throw new Error(peaks[precision]);
    const [wires, together] = [model.get("network") * 1e9, model.get("node") ?? limits.node];
    if (!(wires > 0)) throwInputError("the network out of range", { got: `${wires / 1e9} GB/s`, expected: "more than 0" });
    if (!Number.isInteger(together) || together < 1) throwInputError("devices a node out of range", { got: together, expected: "a whole number, at least 1" });
    return {
      ...limits, peak_flops_per_s: peaks[precision], link_bytes_per_s: limits.link_bytes_per_s ?? wires, network_bytes_per_s: wires, node: together,
    };
  }

  function show() {
    device.input.value = model.get("device");
    network.input.value = model.get("network") ?? "";
    node.input.value = model.get("node") ?? chosen().machine.node;
  }
  return { device, node, network, machine, show };
}

