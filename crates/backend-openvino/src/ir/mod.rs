//! OpenVINO's intermediate representation: a list of layers written as XML, and one blob of constants.
//!
//! Shapes are left out of ports, since the reader infers them again; only parameters and constants carry them.

mod blob;
mod xml;

use std::collections::HashMap;

pub use blob::Blob;

/// Element types of ports and constants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // each is the type of that name
pub enum Element {
    F32,
    F16,
    BF16,
    I64,
    I32,
    I8,
    U8,
    I4,
    U4,
    Boolean,
}

impl Element {
    /// Spelling in attributes of parameters and constants.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "f32",
            Element::F16 => "f16",
            Element::BF16 => "bf16",
            Element::I64 => "i64",
            Element::I32 => "i32",
            Element::I8 => "i8",
            Element::U8 => "u8",
            Element::I4 => "i4",
            Element::U4 => "u4",
            Element::Boolean => "boolean",
        }
    }

    /// Spelling at ports.
    fn precision(self) -> &'static str {
        match self {
            Element::F32 => "FP32",
            Element::F16 => "FP16",
            Element::BF16 => "BF16",
            Element::I64 => "I64",
            Element::I32 => "I32",
            Element::I8 => "I8",
            Element::U8 => "U8",
            Element::I4 => "I4",
            Element::U4 => "U4",
            Element::Boolean => "BOOL",
        }
    }

    /// Bits of one element.
    pub fn bits(self) -> usize {
        match self {
            Element::I64 => 64,
            Element::F32 | Element::I32 => 32,
            Element::F16 | Element::BF16 => 16,
            Element::I8 | Element::U8 | Element::Boolean => 8,
            Element::I4 | Element::U4 => 4,
        }
    }
}

/// One extent of a parameter; `None` is dynamic.
pub type Extent = Option<u64>;

/// An output of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Port {
    layer: usize,
    output: usize,
}

/// How a body's parameter or result meets the outside of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// One slice along this axis per iteration.
    Sliced(u32),
    /// The same value at every iteration; of a result the last one.
    Whole,
}

/// A graph that runs once per slice.
pub struct Iteration {
    /// The body.
    pub body: Model,
    /// The outer value of each of the body's parameters, in their order, and how it comes in.
    pub inputs: Vec<(Port, Way)>,
    /// For each of the body's results, in their order: whether it leaves, and the parameter that it becomes at the
    /// next iteration.
    pub results: Vec<(Option<Way>, Option<usize>)>,
}

struct Layer {
    kind: &'static str,
    opset: &'static str,
    name: String,
    attributes: Vec<(&'static str, String)>,
    inputs: Vec<Port>,
    outputs: Vec<Output>,
    iteration: Option<Box<Parts>>,
    /// Marks a conversion that plugins keep apart from its constant.
    decompression: bool,
}

struct Output {
    element: Element,
    names: Vec<String>,
}

/// What an iteration has besides its ports.
struct Parts {
    body: Model,
    ways: Vec<Way>,
    results: Vec<(Option<Way>, Option<usize>)>,
}

/// A model, or the body of an iteration, as it is built up.
#[derive(Default)]
pub struct Model {
    layers: Vec<Layer>,
    small: HashMap<(Element, Vec<u64>, Vec<u8>), Port>,
    parameters: Vec<usize>,
    results: Vec<usize>,
}

impl Model {
    /// Adds an operation of one output.
    pub fn op(
        &mut self,
        kind: &'static str,
        opset: &'static str,
        attributes: &[(&'static str, String)],
        inputs: &[Port],
        element: Element,
    ) -> Port {
        self.layer(kind, opset, attributes.to_vec(), inputs, &[element])
    }

    /// Adds an operation of several outputs; the port is that of the first.
    pub fn op_many(
        &mut self,
        kind: &'static str,
        opset: &'static str,
        attributes: &[(&'static str, String)],
        inputs: &[Port],
        elements: &[Element],
    ) -> Vec<Port> {
        let first = self.layer(kind, opset, attributes.to_vec(), inputs, elements);
        (0..elements.len()).map(|output| Port { output, ..first }).collect()
    }

    fn layer(
        &mut self,
        kind: &'static str,
        opset: &'static str,
        attributes: Vec<(&'static str, String)>,
        inputs: &[Port],
        elements: &[Element],
    ) -> Port {
        let layer = self.layers.len();
        let outputs =
            elements.iter().map(|element| Output { element: *element, names: Vec::new() }).collect();
        self.layers.push(Layer {
            kind,
            opset,
            name: format!("{kind}_{layer}"),
            attributes,
            inputs: inputs.to_vec(),
            outputs,
            iteration: None,
            decompression: false,
        });
        Port { layer, output: 0 }
    }

    /// Adds an input of the model under a name.
    pub fn parameter(&mut self, name: &str, element: Element, shape: &[Extent]) -> Port {
        let shape: Vec<String> =
            shape.iter().map(|extent| extent.map_or("?".to_owned(), |extent| extent.to_string())).collect();
        let attributes = vec![("element_type", element.name().to_owned()), ("shape", shape.join(","))];
        let port = self.layer("Parameter", "opset1", attributes, &[], &[element]);
        self.parameters.push(port.layer);
        self.name(port, name);
        self.layers[port.layer].name = name.to_owned();
        port
    }

    /// Makes a value an output of the model under a name.
    pub fn result(&mut self, value: Port, name: &str) {
        let port = self.layer("Result", "opset1", Vec::new(), &[value], &[]);
        self.results.push(port.layer);
        self.name(value, name);
        self.layers[port.layer].name = format!("{name}.result");
    }

    /// Stores a value in a variable at the end of a run.
    pub fn assign(&mut self, variable: &str, value: Port) {
        let element = self.element(value);
        self.layer("Assign", "opset6", vec![("variable_id", variable.to_owned())], &[value], &[element]);
    }

    /// Gives a value a name by which it can be asked for.
    fn name(&mut self, value: Port, name: &str) {
        if !name.is_empty() {
            self.layers[value.layer].outputs[value.output].names.push(name.to_owned());
        }
    }

    /// Names the layer that makes a value, for people and for the shim.
    pub fn name_layer(&mut self, value: Port, name: &str) {
        self.layers[value.layer].name = name.to_owned();
    }

    /// Element type of a value.
    pub fn element(&self, value: Port) -> Element {
        self.layers[value.layer].outputs[value.output].element
    }

    /// A constant that lies in the blob.
    pub fn constant(&mut self, element: Element, shape: &[u64], offset: u64, bytes: u64) -> Port {
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let attributes = vec![
            ("element_type", element.name().to_owned()),
            ("shape", shape.join(",")),
            ("offset", offset.to_string()),
            ("size", bytes.to_string()),
        ];
        self.layer("Const", "opset1", attributes, &[], &[element])
    }

    /// A small constant; equal ones are written once.
    pub fn small(&mut self, blob: &mut Blob, element: Element, shape: &[u64], bytes: Vec<u8>) -> Port {
        let key = (element, shape.to_vec(), bytes);
        if let Some(port) = self.small.get(&key) {
            return *port;
        }
        let offset = blob.shared(&key.2);
        let port = self.constant(element, shape, offset, key.2.len() as u64);
        self.small.insert(key, port);
        port
    }

    /// Converts to another element type.
    pub fn convert(&mut self, value: Port, element: Element) -> Port {
        if self.element(value) == element {
            return value;
        }
        self.op("Convert", "opset1", &[("destination_type", element.name().to_owned())], &[value], element)
    }

    /// Converts a constant of weights; plugins may then multiply with the constant as it is.
    pub fn decompress(&mut self, value: Port, element: Element) -> Port {
        let port = self.convert(value, element);
        if port != value {
            self.layers[port.layer].decompression = true;
        }
        port
    }

    /// Adds an iteration and returns the values that leave it, in the order of the body's results.
    pub fn iterate(&mut self, iteration: Iteration) -> Vec<Port> {
        let Iteration { body, inputs, results } = iteration;
        let elements: Vec<Element> = body
            .results
            .iter()
            .zip(&results)
            .filter(|(_, (leaves, _))| leaves.is_some())
            .map(|(result, _)| body.element(body.layers[*result].inputs[0]))
            .collect();
        let ports: Vec<Port> = inputs.iter().map(|(port, _)| *port).collect();
        let first = self.layer("TensorIterator", "opset1", Vec::new(), &ports, &elements);
        let ways = inputs.iter().map(|(_, way)| *way).collect();
        self.layers[first.layer].iteration = Some(Box::new(Parts { body, ways, results }));
        (0..elements.len()).map(|output| Port { output, ..first }).collect()
    }

    /// The XML text of a whole model.
    pub fn to_xml(&self) -> String {
        xml::write(self)
    }

    /// Number of layers, those of bodies not counted.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }
}
