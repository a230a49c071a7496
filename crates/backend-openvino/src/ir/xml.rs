//! The text form of a model.

use std::fmt::Write;

use super::{Model, Way};

/// The whole file.
pub(super) fn write(model: &Model) -> String {
    let mut text = String::from("<?xml version=\"1.0\"?>\n<net name=\"puna\" version=\"11\">\n");
    graph(&mut text, model, 1);
    text.push_str("</net>\n");
    text
}

/// Writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $depth:expr, $($format:tt)*) => {{
        $text.extend(std::iter::repeat_n('\t', $depth));
        let _ = writeln!($text, $($format)*);
    }};
}

fn graph(text: &mut String, model: &Model, depth: usize) {
    line!(text, depth, "<layers>");
    for (id, layer) in model.layers.iter().enumerate() {
        let (name, kind, opset) = (escaped(&layer.name), layer.kind, layer.opset);
        line!(text, depth + 1, "<layer id=\"{id}\" name=\"{name}\" type=\"{kind}\" version=\"{opset}\">");
        if !layer.attributes.is_empty() {
            let attributes: Vec<String> =
                layer.attributes.iter().map(|(key, value)| format!("{key}=\"{}\"", escaped(value))).collect();
            line!(text, depth + 2, "<data {} />", attributes.join(" "));
        }
        if layer.decompression {
            line!(text, depth + 2, "<rt_info><attribute name=\"decompression\" version=\"0\" /></rt_info>");
        }
        if !layer.inputs.is_empty() {
            line!(text, depth + 2, "<input>");
            for (port, source) in layer.inputs.iter().enumerate() {
                let precision = model.element(*source).precision();
                line!(text, depth + 3, "<port id=\"{port}\" precision=\"{precision}\" />");
            }
            line!(text, depth + 2, "</input>");
        }
        if !layer.outputs.is_empty() {
            line!(text, depth + 2, "<output>");
            for (index, output) in layer.outputs.iter().enumerate() {
                let port = layer.inputs.len() + index;
                let precision = output.element.precision();
                let names = match output.names.is_empty() {
                    true => String::new(),
                    false => format!(" names=\"{}\"", escaped(&output.names.join(","))),
                };
                line!(text, depth + 3, "<port id=\"{port}\" precision=\"{precision}\"{names} />");
            }
            line!(text, depth + 2, "</output>");
        }
        if let Some(parts) = &layer.iteration {
            iteration(text, parts, layer.inputs.len(), depth + 2);
        }
        line!(text, depth + 1, "</layer>");
    }
    line!(text, depth, "</layers>");
    line!(text, depth, "<edges>");
    for (id, layer) in model.layers.iter().enumerate() {
        for (port, source) in layer.inputs.iter().enumerate() {
            let from = source.layer;
            let from_port = model.layers[from].inputs.len() + source.output;
            line!(
                text,
                depth + 1,
                "<edge from-layer=\"{from}\" from-port=\"{from_port}\" to-layer=\"{id}\" to-port=\"{port}\" />"
            );
        }
    }
    line!(text, depth, "</edges>");
}

/// Ports of the iteration, its back edges and its body.
fn iteration(text: &mut String, parts: &super::Parts, inputs: usize, depth: usize) {
    let whole = |way: &Way| match way {
        Way::Sliced(axis) => format!(" axis=\"{axis}\" start=\"0\" end=\"-1\" stride=\"1\" part_size=\"1\""),
        Way::Whole => String::new(),
    };
    line!(text, depth, "<port_map>");
    for (port, (way, layer)) in parts.ways.iter().zip(&parts.body.parameters).enumerate() {
        let way = whole(way);
        line!(text, depth + 1, "<input{way} external_port_id=\"{port}\" internal_layer_id=\"{layer}\" />");
    }
    let mut port = inputs;
    for ((leaves, _), layer) in parts.results.iter().zip(&parts.body.results) {
        if let Some(way) = leaves {
            let way = whole(way);
            line!(
                text,
                depth + 1,
                "<output{way} external_port_id=\"{port}\" internal_layer_id=\"{layer}\" />"
            );
            port += 1;
        }
    }
    line!(text, depth, "</port_map>");
    line!(text, depth, "<back_edges>");
    for ((_, becomes), from) in parts.results.iter().zip(&parts.body.results) {
        if let Some(to) = becomes.and_then(|parameter| parts.body.parameters.get(parameter)) {
            line!(text, depth + 1, "<edge from-layer=\"{from}\" to-layer=\"{to}\" />");
        }
    }
    line!(text, depth, "</back_edges>");
    line!(text, depth, "<body>");
    graph(text, &parts.body, depth + 1);
    line!(text, depth, "</body>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}
