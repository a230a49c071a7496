//! Formats of cached keys and values: those of the options, unless properties of the plugin say otherwise.

use puna_backend::{BackendError, CacheOptions};
use puna_quant::DType;

use crate::ir::Element;
use crate::settings::Settings;
use crate::translate::CacheForm;

/// Properties that name formats: of keys, of values, of both.
const OF_KEYS: &str = "KEY_CACHE_PRECISION";
const OF_VALUES: &str = "VALUE_CACHE_PRECISION";
const OF_BOTH: &str = "KV_CACHE_PRECISION";

/// Whether this property is one of them, which [`formats`] has read.
pub(crate) fn is_cache_format(key: &str) -> bool {
    [OF_KEYS, OF_VALUES, OF_BOTH].contains(&key)
}

/// The properties that a model is compiled with for these formats of keys and of values.
pub(crate) fn properties([keys, values]: [Element; 2]) -> [(String, String); 2] {
    [(OF_KEYS, keys), (OF_VALUES, values)].map(|(key, format)| (key.to_owned(), format.name().to_owned()))
}

/// The formats of keys and of values in this place. The property of one of them goes before that of both, and that
/// before `-ctk` and `-ctv`. An error names what the place cannot hold.
pub(crate) fn formats(
    settings: &Settings,
    form: CacheForm,
    options: &CacheOptions,
) -> Result<[Element; 2], String> {
    let given = |key: &str| settings.properties.iter().rev().find(|(other, _)| other == key);
    let format = |own: &str, dtype: DType| match given(own).or_else(|| given(OF_BOTH)) {
        Some((key, value)) => {
            named(form, value).map_err(|reason| format!("GGML_OPENVINO_PROPERTIES: {key}={value}: {reason}"))
        }
        None => of_option(dtype).map_err(|error| error.to_string()),
    };
    let [keys, values] = [format(OF_KEYS, options.keys)?, format(OF_VALUES, options.values)?];
    if form == CacheForm::Paged && keys != values {
        return Err(format!(
            "keys in {} and values in {}: pages hold both in one format (give -ctk and -ctv the same, or set PUNA_OPENVINO_SHIM=0)",
            keys.name(),
            values.name()
        ));
    }
    Ok([keys, values])
}

/// The format that a property names.
fn named(form: CacheForm, value: &str) -> Result<Element, String> {
    let name = value.to_ascii_lowercase().replace("fp", "f");
    let all = [Element::F32, Element::F16, Element::BF16, Element::U8, Element::I8, Element::U4, Element::I4];
    let found = all.into_iter().find(|element| element.name() == name);
    match (found, form) {
        // What else its variables hold is the plugin's affair.
        (Some(format), CacheForm::Stateful) => Ok(format),
        (Some(Element::F32), _) => Ok(Element::F32),
        (Some(Element::F16 | Element::BF16), _) => Ok(Element::F16),
        (_, CacheForm::Stateful) => Err("that is no format of keys and values".to_owned()),
        (_, CacheForm::Host) => Err("keys and values that the host keeps are f32 or f16".to_owned()),
        (_, CacheForm::Paged) => Err("keys and values in pages are f32 or f16".to_owned()),
    }
}

/// The format in which a cache of this option is kept. Half precision holds numbers of bf16 at least as finely.
fn of_option(dtype: DType) -> Result<Element, BackendError> {
    match saved_as(dtype)? {
        Element::BF16 => Ok(Element::F16),
        format => Ok(format),
    }
}

/// The format in which cells of a cache of this option are saved, as on every back end.
pub(crate) fn saved_as(dtype: DType) -> Result<Element, BackendError> {
    match dtype {
        DType::F32 => Ok(Element::F32),
        DType::F16 => Ok(Element::F16),
        DType::BF16 => Ok(Element::BF16),
        _ => Err(BackendError::CacheFormatUnknown { dtype }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(form: CacheForm, properties: &str, dtypes: [DType; 2]) -> Result<[Element; 2], String> {
        let lookup = |name: &str| (name == "GGML_OPENVINO_PROPERTIES").then(|| properties.to_owned());
        let [keys, values] = dtypes;
        let options = CacheOptions { keys, values, sequences: 1, cells: Vec::new() };
        formats(&Settings::read(&lookup), form, &options)
    }

    #[test]
    fn properties_go_before_options_and_single_ones_before_both() {
        use Element::{BF16, F16, F32, U8};
        let halves = [DType::F16; 2];
        for (form, properties, dtypes, expected) in [
            (CacheForm::Paged, "", halves, [F16; 2]),
            (CacheForm::Paged, "", [DType::BF16; 2], [F16; 2]),
            (CacheForm::Paged, "KV_CACHE_PRECISION=f32", halves, [F32; 2]),
            (CacheForm::Paged, "KEY_CACHE_PRECISION=f32,VALUE_CACHE_PRECISION=FP32", halves, [F32; 2]),
            (CacheForm::Paged, "KV_CACHE_PRECISION=f16", [DType::F32; 2], [F16; 2]),
            (CacheForm::Host, "", [DType::F32, DType::F16], [F32, F16]),
            (CacheForm::Host, "VALUE_CACHE_PRECISION=f32,KV_CACHE_PRECISION=f16", halves, [F16, F32]),
            (CacheForm::Stateful, "KV_CACHE_PRECISION=u8,KEY_CACHE_PRECISION=bf16", halves, [BF16, U8]),
        ] {
            assert_eq!(found(form, properties, dtypes), Ok(expected), "{form:?} {properties}");
        }
    }

    #[test]
    fn what_a_place_cannot_hold_is_named() {
        let halves = [DType::F16; 2];
        for (form, properties, dtypes, expected) in [
            (
                CacheForm::Paged,
                "KV_CACHE_PRECISION=u8",
                halves,
                "KV_CACHE_PRECISION=u8: keys and values in pages are",
            ),
            (
                CacheForm::Host,
                "KEY_CACHE_PRECISION=u8",
                halves,
                "KEY_CACHE_PRECISION=u8: keys and values that the host",
            ),
            (
                CacheForm::Stateful,
                "KV_CACHE_PRECISION=f9",
                halves,
                "KV_CACHE_PRECISION=f9: that is no format",
            ),
            (
                CacheForm::Paged,
                "",
                [DType::F32, DType::F16],
                "keys in f32 and values in f16: pages hold both in one",
            ),
            (CacheForm::Paged, "KEY_CACHE_PRECISION=f32", halves, "keys in f32 and values in f16: "),
            (CacheForm::Host, "", [DType::Q8_0; 2], "the cache cannot be stored as "),
        ] {
            let error = found(form, properties, dtypes).expect_err(properties);
            assert!(error.contains(expected), "{error}");
        }
    }
}
