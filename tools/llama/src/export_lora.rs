//! `llama export-lora`: a model with the changes of adapters in its weights.

use crate::console::Console;
use crate::failure::Failure;
use crate::invocation::Invocation;
use crate::shards::{self, Output};
use crate::{interrupt, load, source};
use puna_flags::{Config, FLAGS, Spec, ToolSet};
use puna_gguf::{File, OpenOptions, TensorInfo, TensorSpec, Value};
use puna_quant::{DType, QuantError};
use puna_runtime::Adapter;
use std::path::{Path, PathBuf};

/// Flags of `export-lora`.
pub const SPEC: Spec<Config> = Spec {
    name: "export-lora",
    tool: ToolSet::EXPORT_LORA,
    about: "Write a model (-m FILE) with the changes of LoRA adapters (--lora FILE) in its weights; changed tensors become \
            f16, unless they are f32",
    groups: FLAGS,
    positional: None,
};

/// `llama export-lora`.
pub fn run(invocation: &Invocation) -> Result<(), Failure> {
    let Some((config, console)) = invocation.parse(&SPEC)? else { return Ok(()) };
    let adapters = load::extras(&config)?.adapters;
    if adapters.is_empty() {
        return Err(invocation.usage("no adapter: give --lora FILE"));
    }
    let path = source::model(invocation, &config.model, &console, false)?;
    let file = load::file(&path, &OpenOptions::default(), &console)?;
    check(&file, &adapters)?;
    let output = config.export_lora.output.clone();
    let output = output.unwrap_or_else(|| PathBuf::from("ggml-lora-merged-f16.gguf"));
    interrupt::install();
    write((&path, &file), &adapters, &output, &console)
}

/// Every adapter must be of the model's architecture and change tensors that the model has.
fn check(file: &File, adapters: &[Adapter]) -> Result<(), Failure> {
    let expected = file.metadata.str("general.architecture")?;
    for adapter in adapters {
        let failed = |text: String| Failure::Failed(format!("{}: {text}", adapter.path().display()));
        let found = adapter.file().metadata.str("general.architecture");
        let found = found.map_err(|error| failed(error.to_string()))?;
        if found != expected {
            return Err(failed(format!("it is for models of {found:?}, this one is of {expected:?}")));
        }
        if let Some(weight) = adapter.weights().find(|weight| file.tensors.get(weight).is_none()) {
            return Err(failed(format!("the model has no tensor {weight:?}")));
        }
    }
    Ok(())
}

fn write(
    (path, file): (&Path, &File),
    adapters: &[Adapter],
    output: &Path,
    console: &Console,
) -> Result<(), Failure> {
    let mut metadata = file.metadata.clone();
    metadata.set("general.file_type", Value::U32(1));
    let is_changed =
        |tensor: &TensorInfo| adapters.iter().any(|adapter| adapter.factors(&tensor.name).is_some());
    let spec = |tensor: &TensorInfo| {
        let dtype = match (is_changed(tensor), tensor.dtype) {
            (false, dtype) | (true, dtype @ DType::F32) => dtype,
            (true, _) => DType::F16,
        };
        TensorSpec { dtype, ..TensorSpec::from(tensor) }
    };
    let specs: Vec<TensorSpec> = file.tensors.iter().map(spec).collect();
    let mut inputs = load::inputs(path, file);
    inputs.extend(adapters.iter().map(|adapter| adapter.path().to_owned()));
    let mut written = Output::new(shards::plan(output, &metadata, vec![specs.clone()])?, &inputs)?;
    let bar = console.progress(Some(specs.iter().map(|spec| spec.byte_len().unwrap_or(0)).sum()));
    let mut changed = 0;
    for (tensor, spec) in file.tensors.iter().zip(&specs) {
        if is_changed(tensor) {
            changed += 1;
            written.copy(&merged(file, tensor, spec.dtype, adapters)?, &bar)?;
        } else {
            written.copy(file.bytes(tensor), &bar)?;
        }
        file.release(tensor);
    }
    bar.finish_and_clear();
    written.finish()?;
    console.info(&format!("wrote {} with {changed} changed tensors", output.display()));
    Ok(())
}

/// A tensor with its changes.
fn merged(file: &File, tensor: &TensorInfo, dtype: DType, adapters: &[Adapter]) -> Result<Vec<u8>, Failure> {
    let failed = |error: QuantError| Failure::Failed(format!("tensor {}: {error}", tensor.name));
    let mut weights = decoded(file, tensor).map_err(failed)?;
    for adapter in adapters {
        let Some((down, up)) = adapter.factors(&tensor.name) else { continue };
        let scale = adapter.factor(up)?;
        let (a, b) =
            (decoded(adapter.file(), down).map_err(failed)?, decoded(adapter.file(), up).map_err(failed)?);
        let fits = add(&mut weights, &tensor.shape, (&a, &down.shape), (&b, &up.shape), scale);
        fits.ok_or_else(|| {
            Failure::Failed(format!(
                "{}: the factors {:?} and {:?} do not fit tensor {} of shape {:?}",
                adapter.path().display(),
                up.shape,
                down.shape,
                tensor.name,
                tensor.shape
            ))
        })?;
    }
    let mut bytes = vec![0; dtype.bytes_for(weights.len() as u64).unwrap_or(0) as usize];
    puna_quant::encode_row(dtype, &weights, &mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn decoded(file: &File, tensor: &TensorInfo) -> Result<Vec<f32>, QuantError> {
    let mut floats = vec![0.0; usize::try_from(tensor.elements()).unwrap_or(0)];
    puna_quant::decode_row(tensor.dtype, file.bytes(tensor), &mut floats)?;
    Ok(floats)
}

/// Rows and columns of a matrix, and how many there are.
fn extents(shape: &[u64]) -> Option<(usize, usize, usize)> {
    let count = |extent: &u64| usize::try_from(*extent).ok().filter(|extent| *extent > 0);
    match shape {
        [columns] => Some((1, 1, count(columns)?)),
        [outer @ .., rows, columns] => {
            let matrices =
                outer.iter().try_fold(1usize, |product, extent| product.checked_mul(count(extent)?))?;
            Some((matrices, count(rows)?, count(columns)?))
        }
        [] => None,
    }
}

/// Adds `scale · B · A` to each matrix; of a table that is looked up, the factors come the other way round. None if the
/// shapes do not fit.
fn add(
    weights: &mut [f32],
    shape: &[u64],
    (a, a_shape): (&[f32], &[u64]),
    (b, b_shape): (&[f32], &[u64]),
    scale: f32,
) -> Option<()> {
    let (matrices, rows, columns) = extents(shape)?;
    let (a_count, a_rows, a_columns) = extents(a_shape)?;
    let (b_count, b_rows, rank) = extents(b_shape)?;
    if a_count != matrices || b_count != matrices {
        return None;
    }
    let usual = b_rows == rows && a_rows == rank && a_columns == columns;
    let table = a_rows == rows && a_columns == rank && b_rows == columns;
    if !usual && !table {
        return None;
    }
    for matrix in 0..matrices {
        let a = a.get(matrix * a_rows * a_columns..)?;
        let b = b.get(matrix * b_rows * rank..)?;
        for row in 0..rows {
            let start = (matrix * rows + row) * columns;
            let weights = weights.get_mut(start..start + columns)?;
            for inner in 0..rank {
                if usual {
                    let factor = scale * *b.get(row * rank + inner)?;
                    let from = a.get(inner * columns..(inner + 1) * columns)?;
                    weights.iter_mut().zip(from).for_each(|(weight, a)| *weight += factor * a);
                } else {
                    let factor = scale * *a.get(row * rank + inner)?;
                    let column = b.iter().skip(inner).step_by(rank);
                    weights.iter_mut().zip(column).for_each(|(weight, b)| *weight += factor * b);
                }
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_added_both_ways() {
        let (a, b) = ([1.0, 2.0, 3.0], [10.0, 20.0]);
        let mut weights = [1.0; 6];
        add(&mut weights, &[2, 3], (&a, &[1, 3]), (&b, &[2, 1]), 0.5).expect("they fit");
        assert_eq!(weights, [6.0, 11.0, 16.0, 11.0, 21.0, 31.0]);
        let mut table = [0.0; 6];
        add(&mut table, &[2, 3], (&b, &[2, 1]), (&a, &[3, 1]), 1.0).expect("they fit");
        assert_eq!(table, [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]);
        assert!(add(&mut weights, &[2, 3], (&a, &[1, 3]), (&b, &[1, 2]), 1.0).is_none());
        assert!(add(&mut weights, &[], (&a, &[1, 3]), (&b, &[2, 1]), 1.0).is_none());
    }
}
