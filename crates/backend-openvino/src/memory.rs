//! What a partition keeps for each state, and how a run's inputs refer to it.

use std::ffi::CString;

use crate::blocks::Blocks;
use crate::caches::Plane;
use crate::ffi::{Bytes, Input};
use crate::ir::Element;
use crate::run::Data;
use crate::translate::Feed;

/// What one state keeps.
pub(crate) enum Kept {
    /// Keys and values that the host stores.
    KeyValue { keys: Plane, values: Plane },
    /// Keys and values that the model stores in blocks.
    Paged { keys: Blocks, values: Blocks },
    /// Keys and values in variables of the model, out of reach; bytes that a cell would have.
    InModel { cell_bytes: usize },
    /// `[cells, elements]`
    Recurrent { elements: usize, numbers: Vec<f32> },
    /// It belongs to another segment.
    Elsewhere,
}

/// A state's memory, borrowed part by part.
enum Parts<'a> {
    Planes(&'a Plane, &'a Plane),
    Blocks(Option<&'a mut Blocks>, Option<&'a mut Blocks>),
    None,
}

/// The inputs of a run: data made for it, and memory that is kept. `pages`: what the numbers of pages are now.
pub(crate) fn inputs<'a>(
    pages: Option<Element>,
    feeds: &'a [(Feed, CString)],
    owned: &'a [(Vec<i64>, Data)],
    kept: &'a mut [Kept],
) -> Vec<Input<'a>> {
    let mut parts: Vec<Parts<'a>> = kept
        .iter_mut()
        .map(|kept| match kept {
            Kept::KeyValue { keys, values } => Parts::Planes(keys, values),
            Kept::Paged { keys, values } => Parts::Blocks(Some(keys), Some(values)),
            Kept::InModel { .. } | Kept::Recurrent { .. } | Kept::Elsewhere => Parts::None,
        })
        .collect();
    let mut all = Vec::with_capacity(feeds.len());
    for ((feed, name), (shape, data)) in feeds.iter().zip(owned) {
        let (element, shape, bytes) = match (data, feed) {
            (Data::F32(data), _) => (Element::F32, shape.clone(), Bytes::Read(bytemuck::cast_slice(data))),
            (Data::I32(data), _) => (Element::I32, shape.clone(), Bytes::Read(bytemuck::cast_slice(data))),
            (Data::I64(data), _) => (Element::I64, shape.clone(), Bytes::Read(bytemuck::cast_slice(data))),
            (Data::Kept, Feed::PastKeys(state) | Feed::PastValues(state)) => match &parts[state.index()] {
                Parts::Planes(keys, values) => {
                    let plane = if matches!(feed, Feed::PastKeys(_)) { *keys } else { *values };
                    (plane.element(), plane.shape(), Bytes::Read(plane.bytes()))
                }
                _ => continue,
            },
            (Data::Kept, Feed::KeyBlocks(state) | Feed::ValueBlocks(state)) => {
                let Parts::Blocks(keys, values) = &mut parts[state.index()] else { continue };
                let part = if matches!(feed, Feed::KeyBlocks(_)) { keys.take() } else { values.take() };
                let Some(blocks) = part else { continue };
                (pages.unwrap_or(blocks.element()), blocks.shape(), Bytes::Write(blocks.bytes_mut()))
            }
            (Data::Kept, _) => continue,
        };
        all.push(Input { name, element, shape, bytes });
    }
    all
}
