//! Typed access to metadata.

use puna_gguf::{Array, Error, File, MAX_LAYERS, Metadata, OpenOptions, Value, parse_override};

fn metadata() -> Metadata {
    [
        ("u8", Value::U8(200)),
        ("i32", Value::I32(-1)),
        ("u64", Value::U64(1 << 63)),
        ("i64", Value::I64(7)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(1e300)),
        ("f64-inf", Value::F64(f64::INFINITY)),
        ("bool", Value::Bool(true)),
        ("str", "text".into()),
        ("heads", vec![1i32, 2, 3].into()),
        ("negative", vec![1i32, -2].into()),
        ("wide", vec![1u64 << 40].into()),
        ("bits", vec![true, false, true].into()),
        ("zero-one", vec![0u32, 1, 1].into()),
        ("bytes", vec![-1i8, 1].into()),
        ("floats", vec![0.5f32, 1.0, 2.0].into()),
        ("doubles", vec![0.5f64, 1e300].into()),
        ("strings", vec!["a".to_owned()].into()),
    ]
    .into_iter()
    .collect()
}

#[track_caller]
fn says<T: std::fmt::Debug>(result: Result<T, Error>, parts: &[&str]) {
    let text = result.expect_err("an error").to_string();
    for part in parts {
        assert!(text.contains(part), "{text:?} does not say {part:?}");
    }
}

#[test]
fn integers_convert_when_they_fit() {
    let metadata = metadata();
    assert_eq!(metadata.u32("u8").unwrap(), 200);
    assert_eq!(metadata.i32("i32").unwrap(), -1);
    assert_eq!(metadata.u64("u64").unwrap(), 1 << 63);
    assert_eq!(metadata.u32_or("i64", 1).unwrap(), 7);
    assert_eq!(metadata.u32_or("none", 1).unwrap(), 1);
    assert_eq!(metadata.optional_u32("none").unwrap(), None);
    says(metadata.u32("none"), &["\"none\"", "missing"]);
    says(metadata.u32("i32"), &["\"i32\"", "-1", "u32"]);
    says(metadata.u32_or("u64", 1), &["9223372036854775808", "u32"]);
    for key in ["bool", "f32", "str", "heads", "strings"] {
        says(metadata.u32(key), &[key, "expected u32"]);
        says(metadata.u32_or(key, 1), &[key, "expected u32"]);
        says(metadata.optional_u64(key), &[key, "expected u64"]);
    }
    says(metadata.u32("heads"), &["arr[i32]"]);
}

#[test]
fn other_scalars() {
    let metadata = metadata();
    assert_eq!(metadata.f32("f32").unwrap(), 1.5);
    assert_eq!(metadata.f32("f64-inf").unwrap(), f32::INFINITY);
    assert_eq!(metadata.f32_or("none", 2.0).unwrap(), 2.0);
    says(metadata.f32("f64"), &["1e300", "f32"]);
    for key in ["bool", "str", "u8", "floats"] {
        says(metadata.f32(key), &[key, "expected f32"]);
    }
    assert!(metadata.bool("bool").unwrap());
    assert!(!metadata.bool_or("none", false).unwrap());
    for key in ["u8", "str", "f32", "bits"] {
        says(metadata.optional_bool(key), &[key, "expected bool"]);
    }
    assert_eq!(metadata.str("str").unwrap(), "text");
    assert_eq!(metadata.str_or("none", "other").unwrap(), "other");
    assert_eq!(metadata.optional_str("none").unwrap(), None);
    for key in ["u8", "bool", "strings"] {
        says(metadata.str(key), &[key, "expected str"]);
    }
}

#[test]
fn arrays() {
    let metadata = metadata();
    assert_eq!(metadata.u32_array("heads").unwrap(), [1, 2, 3]);
    assert_eq!(metadata.i32_array("negative").unwrap(), [1, -2]);
    assert_eq!(metadata.u64_array("wide").unwrap(), [1 << 40]);
    says(metadata.u32_array("negative"), &["element 1", "-2"]);
    says(metadata.u32_array("wide"), &["element 0", "1099511627776"]);
    assert_eq!(metadata.f32_array("floats").unwrap(), [0.5, 1.0, 2.0]);
    assert_eq!(metadata.f32_array("heads").unwrap(), [1.0, 2.0, 3.0]);
    says(metadata.f32_array("doubles"), &["element 1", "1e300"]);
    assert_eq!(metadata.bool_array("bits").unwrap(), [true, false, true]);
    assert_eq!(metadata.bool_array("zero-one").unwrap(), [false, true, true]);
    says(metadata.bool_array("heads"), &["element 1", "bool"]);
    assert_eq!(metadata.u8_array("bytes").unwrap(), [255, 1]);
    assert_eq!(metadata.string_array("strings").unwrap(), ["a"]);
    assert_eq!(metadata.optional_string_array("none").unwrap(), None);
    assert_eq!(metadata.optional_f32_array("none").unwrap(), None);
    says(metadata.u32_array("none"), &["missing"]);
}

#[test]
fn narrow_arrays_are_no_numbers() {
    // Scores as u8, types as i8, merges as i32, tokens as f32: read with the wrong stride elsewhere.
    let odd: Metadata = [
        ("scores", Value::from(vec![1u8; 4])),
        ("types", vec![1i8; 4].into()),
        ("merges", vec![1i32; 4].into()),
        ("tokens", vec![1f32; 4].into()),
    ]
    .into_iter()
    .collect();
    says(odd.f32_array("scores"), &["scores", "arr[u8]", "arr[f32]"]);
    says(odd.i32_array("types"), &["types", "arr[i8]", "arr[i32]"]);
    says(odd.string_array("merges"), &["merges", "arr[i32]", "arr[str]"]);
    says(odd.string_array("tokens"), &["tokens", "arr[f32]", "arr[str]"]);
}

#[test]
fn per_layer() {
    let metadata = metadata();
    assert_eq!(metadata.u32_per_layer("u8", 2).unwrap().unwrap(), [200, 200]);
    assert_eq!(metadata.u32_per_layer("heads", 3).unwrap().unwrap(), [1, 2, 3]);
    assert_eq!(metadata.u32_per_layer("bits", 3).unwrap().unwrap(), [1, 0, 1]);
    assert_eq!(metadata.u32_per_layer("none", 3).unwrap(), None);
    assert_eq!(metadata.f32_per_layer("floats", 3).unwrap().unwrap(), [0.5, 1.0, 2.0]);
    assert_eq!(metadata.f32_per_layer("f32", 1).unwrap().unwrap(), [1.5]);
    assert_eq!(metadata.bool_per_layer("bool", 2).unwrap().unwrap(), [true, true]);
    says(metadata.u32_per_layer("heads", 4), &["heads", "3 elements", "expected 4"]);
    says(metadata.u32_per_layer("str", 4), &["expected u32"]);
    says(metadata.u32_per_layer("strings", 1), &["arr[str]"]);
    says(metadata.u32_per_layer("u8", MAX_LAYERS + 1), &["513", "512"]);
    says(metadata.u32_per_layer("u8", usize::MAX), &["512"]);
}

#[test]
fn keys_keep_their_order() {
    let mut metadata = metadata();
    assert_eq!(metadata.set("f32", 2.5f32), Some(Value::F32(1.5)));
    assert_eq!(metadata.set("new", Array::from(vec![1u16])), None);
    assert_eq!(metadata.remove("u8"), Some(Value::U8(200)));
    assert_eq!(metadata.remove("u8"), None);
    let keys: Vec<&str> = metadata.iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..4], ["i32", "u64", "i64", "f32"]);
    assert_eq!(keys.last(), Some(&"new"));
    for key in keys {
        assert!(metadata.get(key).is_some());
    }
    assert_eq!(metadata.f32("f32").unwrap(), 2.5);
}

#[test]
fn overrides() {
    assert_eq!(parse_override("a.b=int:-3").unwrap(), ("a.b".into(), Value::I64(-3)));
    assert_eq!(parse_override("a=float:1e3").unwrap(), ("a".into(), Value::F64(1000.0)));
    assert_eq!(parse_override("a=bool:false").unwrap(), ("a".into(), Value::Bool(false)));
    assert_eq!(parse_override("a=str:x:y=z").unwrap(), ("a".into(), "x:y=z".into()));
    let long = "x".repeat(128);
    for bad in [
        "",
        "a",
        "a=1",
        "=int:1",
        "a=int:x",
        "a=int:1.5",
        "a=bool:1",
        "a=u32:1",
        &format!("a=str:{long}"),
        &format!("{long}=int:1"),
    ] {
        says(parse_override(bad), &["override", "KEY=TYPE:VALUE"]);
    }

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    puna_gguf::write(&path, &metadata(), &[]).unwrap();
    let overrides = vec![("u8".to_owned(), Value::I64(4)), ("added".to_owned(), Value::F64(0.5))];
    let file = File::open(&path, &OpenOptions { overrides, ..OpenOptions::default() }).unwrap();
    assert_eq!(file.metadata.u32("u8").unwrap(), 4);
    assert_eq!(file.metadata.f32("added").unwrap(), 0.5);
}
