//! Well-formed files whose tensors are not those that the metadata promises.

use puna_quant::DType;

use super::Cases;
use super::raw::{Raw, RawTensor};

pub(super) fn add(cases: &mut Cases, good: &Raw) {
    let names: Vec<String> =
        good.tensors.iter().map(|tensor| String::from_utf8_lossy(&tensor.name).into_owned()).collect();
    // The first of every kind: layers repeat.
    let one_of_a_kind = names.iter().filter(|name| !name.starts_with("blk.") || name.starts_with("blk.0."));
    for name in one_of_a_kind.take(24) {
        let (own, shown) = (name.clone(), name.clone());
        cases.relaid(format!("shape/{shown}/removed"), move |raw| {
            raw.tensors.retain(|tensor| tensor.name != own.as_bytes());
        });
        one(cases, name, "transposed", transpose);
        one(cases, name, "flat", |tensor| tensor.dimensions = vec![tensor.dimensions.iter().product()]);
        one(cases, name, "one-row-less", |tensor| {
            let row = tensor.dimensions.first().copied().unwrap_or(1);
            let bytes = usize::try_from(row).unwrap_or(0) * 4;
            if let (Some(rows), true) = (tensor.dimensions.get_mut(1), tensor.format == DType::F32.id()) {
                *rows = rows.saturating_sub(1);
                tensor.data.truncate(tensor.data.len().saturating_sub(bytes));
            } else {
                empty(tensor);
            }
        });
    }
    for (what, index) in
        [("first", 0), ("middle", good.tensors.len() / 2), ("last", good.tensors.len().wrapping_sub(1))]
    {
        let Some(name) = names.get(index) else { continue };
        one(cases, name, &format!("{what}-empty"), empty);
        one(cases, name, &format!("{what}-bytes"), |tensor| {
            tensor.dimensions = vec![tensor.data.len() as u64];
            tensor.format = DType::I8.id();
        });
        one(cases, name, &format!("{what}-scalar"), |tensor| {
            tensor.dimensions.clear();
            tensor.format = DType::F32.id();
            tensor.data = vec![0; 4];
        });
        one(cases, name, &format!("{what}-4-dimensions"), |tensor| tensor.dimensions.resize(4, 1));
        one(cases, name, &format!("{what}-all-ones"), |tensor| tensor.data.fill(0xff));
    }
    cases.relaid("shape/no-tensors".into(), |raw| raw.tensors.clear());
    cases.relaid("shape/ten-unknown-tensors".into(), |raw| {
        raw.tensors.extend((0..10).map(|index| RawTensor {
            name: format!("v.blk.{index}.weight").into_bytes(),
            dimensions: vec![8],
            format: DType::F32.id(),
            offset: 0,
            data: vec![0; 32],
        }));
    });
    cases.relaid("shape/name-with-nul".into(), |raw| {
        if let Some(tensor) = raw.tensors.first_mut() {
            tensor.name.push(0);
        }
    });
    cases.relaid("shape/layer-number-huge".into(), |raw| {
        if let Some(tensor) = raw.tensors.last_mut() {
            tensor.name = b"blk.18446744073709551616.attn_q.weight".to_vec();
        }
    });
}

/// Adds a case that changes the tensor `name`.
fn one(cases: &mut Cases, name: &str, what: &str, change: impl Fn(&mut RawTensor) + 'static) {
    let own = name.to_owned();
    cases.relaid(format!("shape/{name}/{what}"), move |raw| {
        raw.tensors.iter_mut().filter(|tensor| tensor.name == own.as_bytes()).for_each(&change);
    });
}

/// Swaps the axes. Quantised rows become rows of bytes, since blocks cannot be transposed.
fn transpose(tensor: &mut RawTensor) {
    if tensor.format != DType::F32.id() {
        let rows: u64 = tensor.dimensions.iter().skip(1).product();
        tensor.dimensions = vec![tensor.data.len() as u64 / rows.max(1), rows];
        tensor.format = DType::I8.id();
    }
    tensor.dimensions.reverse();
}

fn empty(tensor: &mut RawTensor) {
    tensor.dimensions = vec![0];
    tensor.format = DType::F32.id();
    tensor.data.clear();
}
