//! What is written is read back, byte for byte, and failures leave nothing behind.

mod common;

use std::path::Path;

use common::Image;
use puna_gguf::{Array, Error, File, Metadata, OpenOptions, TensorSpec, Value, Writer, write};
use puna_quant::{DType, FORMATS};

fn open(path: &Path) -> File {
    File::open(path, &OpenOptions::default()).expect("a good file")
}

fn spec(name: &str, dtype: DType, shape: &[u64]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

fn every_value() -> Metadata {
    let mut metadata: Metadata = [
        ("u8", Value::U8(u8::MAX)),
        ("i8", Value::I8(i8::MIN)),
        ("u16", Value::U16(u16::MAX)),
        ("i16", Value::I16(i16::MIN)),
        ("u32", Value::U32(u32::MAX)),
        ("i32", Value::I32(i32::MIN)),
        ("f32", Value::F32(f32::MIN_POSITIVE)),
        ("true", Value::Bool(true)),
        ("false", Value::Bool(false)),
        ("string", "a\0b \u{1f999}".into()),
        ("empty", "".into()),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(f64::MAX)),
        ("u8s", vec![0u8, 255].into()),
        ("i8s", vec![-128i8, 127].into()),
        ("u16s", vec![0u16, u16::MAX].into()),
        ("i16s", vec![i16::MIN].into()),
        // Longer than one chunk of the reader.
        ("u32s", (0..5000u32).collect::<Vec<_>>().into()),
        ("i32s", vec![i32::MIN, 0, i32::MAX].into()),
        ("f32s", vec![0.1f32, -0.0, f32::INFINITY].into()),
        ("bools", vec![true, false, true].into()),
        ("strings", vec![String::new(), "x".into(), "\u{6f22}".into()].into()),
        ("u64s", (0..1025u64).map(|n| n << 50).collect::<Vec<_>>().into()),
        ("i64s", vec![i64::MIN].into()),
        ("f64s", vec![1e-300f64].into()),
    ]
    .into_iter()
    .collect();
    metadata.set("no-strings", Array::String(Vec::new()));
    metadata.set("no-numbers", Array::F32(Vec::new()));
    metadata
}

#[test]
fn every_type_of_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("values.gguf");
    let metadata = every_value();
    write(&path, &metadata, &[]).unwrap();
    let file = open(&path);
    assert_eq!(file.metadata, metadata);
    assert_eq!((file.version(), file.alignment(), file.tensors.len()), (3, 32, 0));
    assert!(file.metadata.iter().map(|(key, _)| key).eq(metadata.iter().map(|(key, _)| key)));
    // The writer pads even without tensors.
    assert_eq!(file.size_on_disk() % 32, 0);
}

#[test]
fn the_writer_agrees_with_an_independent_builder() {
    let image = Image::good();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("good.gguf");
    let good = File::from_bytes(image.bytes()).unwrap();
    let tensors: Vec<_> =
        good.tensors.iter().map(|info| (TensorSpec::from(info), good.bytes(info))).collect();
    write(&path, &good.metadata, &tensors).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), image.bytes());
}

#[test]
fn every_number_format_and_alignment() {
    let folder = tempfile::tempdir().unwrap();
    for alignment in [1u32, 8, 32, 4096] {
        let path = folder.path().join(format!("{alignment}.gguf"));
        let mut metadata = Metadata::new();
        metadata.set("general.alignment", alignment);
        let specs: Vec<_> =
            FORMATS.iter().map(|row| spec(row.name, row.dtype, &[3, row.block as u64])).collect();
        let data: Vec<Vec<u8>> =
            FORMATS.iter().map(|row| vec![row.dtype.id() as u8; 3 * row.bytes]).collect();
        let tensors: Vec<_> = specs.iter().cloned().zip(data.iter().map(Vec::as_slice)).collect();
        write(&path, &metadata, &tensors).unwrap();
        for options in [OpenOptions::default(), OpenOptions { mmap: false, ..OpenOptions::default() }] {
            let file = File::open(&path, &options).unwrap();
            assert_eq!(file.tensors.len(), FORMATS.len());
            assert_eq!(file.alignment(), alignment.into());
            for ((info, spec), data) in file.tensors.iter().zip(&specs).zip(&data) {
                assert_eq!((&info.name, info.dtype, &info.shape), (&spec.name, spec.dtype, &spec.shape));
                assert_eq!(file.bytes(info), data);
                assert_eq!(file.bytes(info).as_ptr().align_offset(alignment.min(4096) as usize), 0);
                assert_eq!(info.file_offset() % u64::from(alignment), 0);
            }
        }
    }
}

#[test]
fn shapes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shapes.gguf");
    // Leading ones are left out, others stay.
    let cases: [(&[u64], &[u64]); 8] = [
        (&[], &[1]),
        (&[1], &[1]),
        (&[5], &[5]),
        (&[1, 1, 5], &[5]),
        (&[2, 1, 3, 1], &[2, 1, 3, 1]),
        (&[1, 2, 3], &[2, 3]),
        (&[0, 4], &[0, 4]),
        (&[1, 1, 1, 1, 2], &[2]),
    ];
    let specs: Vec<_> = cases
        .iter()
        .enumerate()
        .map(|(index, (shape, _))| spec(&format!("t{index}"), DType::F32, shape))
        .collect();
    let mut writer = Writer::create(&path, &Metadata::new(), &specs).unwrap();
    let total: u64 = specs.iter().map(|spec| spec.byte_len().unwrap()).sum();
    let bytes: Vec<u8> = (0..total).map(|index| index as u8).collect();
    // Parts that do not respect the tensors' ends.
    for part in bytes.chunks(7) {
        writer.write_part(part).unwrap();
    }
    writer.finish().unwrap();
    let file = open(&path);
    for (info, (_, expected)) in file.tensors.iter().zip(&cases) {
        assert_eq!(&info.shape, expected);
    }
    assert_eq!(file.tensors.iter().flat_map(|info| file.bytes(info)).copied().collect::<Vec<u8>>(), bytes);
}

#[test]
fn names_and_shapes_that_the_format_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    let create = |metadata: &Metadata, specs: &[TensorSpec]| {
        Writer::create(&path, metadata, specs).map(drop).expect_err("a bad description")
    };
    let none = Metadata::new();
    let one = |name: &str, dtype, shape: &[u64]| create(&none, &[spec(name, dtype, shape)]);
    assert!(matches!(one("", DType::F32, &[1]).inner(), Error::SpecName { length: 0, .. }));
    assert!(matches!(one(&"t".repeat(64), DType::F32, &[1]).inner(), Error::SpecName { length: 64, .. }));
    assert!(matches!(one("t", DType::F32, &[2, 1, 1, 1, 1]).inner(), Error::DimensionCount { found: 5, .. }));
    assert!(matches!(one("t", DType::Q8_0, &[32, 31]).inner(), Error::RowLength { row: 31, .. }));
    assert!(matches!(one("t", DType::F32, &[1 << 62]).inner(), Error::TensorSize { .. }));
    let twice = [spec("t", DType::F32, &[1]), spec("t", DType::F32, &[1])];
    assert!(matches!(create(&none, &twice).inner(), Error::DuplicateTensor { .. }));
    let large = [
        spec("a", DType::I8, &[i64::MAX as u64]),
        spec("b", DType::I8, &[i64::MAX as u64]),
        spec("c", DType::I8, &[64]),
    ];
    assert!(matches!(create(&none, &large).inner(), Error::TensorSize { .. }));
    for (key, value) in [("", 1u32), ("general.alignment", 24)] {
        let metadata: Metadata = [(key, value)].into_iter().collect();
        let error = create(&metadata, &[]);
        assert!(
            matches!(error.inner(), Error::KeyLength { length: 0, .. } | Error::Alignment { found: 24 }),
            "{error}"
        );
        assert!(error.to_string().contains("bad.gguf"), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn failures_leave_nothing_and_keep_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, b"old").unwrap();
    let specs = [spec("a", DType::F32, &[2]), spec("b", DType::F32, &[2])];
    let none = Metadata::new();
    let start = || Writer::create(&path, &none, &specs).unwrap();

    let mut writer = start();
    let error = writer.write_tensor(&[0; 7]).expect_err("a byte too few");
    assert!(matches!(error.inner(), Error::DataLength { found: 7, expected: 8, .. }), "{error}");
    drop(writer);

    let mut writer = start();
    writer.write_tensor(&[0; 8]).unwrap();
    let error = writer.finish().expect_err("a tensor is missing");
    assert!(matches!(error.inner(), Error::DataMissing { name, missing: 1 } if name == "b"), "{error}");

    let mut writer = start();
    writer.write_part(&[0; 12]).unwrap();
    assert!(writer.write_tensor(&[0; 8]).is_err(), "half a tensor is there already");
    assert!(writer.finish().is_err());

    let mut writer = start();
    writer.write_part(&[0; 16]).unwrap();
    assert!(matches!(writer.write_part(&[0]).unwrap_err().inner(), Error::DataSurplus));
    assert!(matches!(writer.write_tensor(&[]).unwrap_err().inner(), Error::DataSurplus));
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    writer.finish().unwrap();

    assert_eq!(open(&path).tensors.len(), 2);
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["model.gguf"]);
}

#[test]
fn a_model_can_be_rewritten_while_it_is_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, Image::good().bytes()).unwrap();
    let file = open(&path);
    let tensors: Vec<_> =
        file.tensors.iter().map(|info| (TensorSpec::from(info), file.bytes(info))).collect();
    let mut metadata = file.metadata.clone();
    metadata.set("general.name", "new");
    write(&path, &metadata, &tensors).unwrap();
    let again = open(&path);
    assert_eq!(again.metadata.str("general.name").unwrap(), "new");
    for (old, new) in file.tensors.iter().zip(&again.tensors) {
        assert_eq!(file.bytes(old), again.bytes(new));
    }
}

#[test]
#[cfg(unix)]
fn places_that_cannot_hold_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let none = Metadata::new();
    for path in [folder.path().to_owned(), "/dev/null".into()] {
        let error = write(&path, &none, &[]).expect_err("no place for a file");
        assert!(matches!(error.inner(), Error::NotRegular { .. }), "{error}");
    }
    let error = write(&folder.path().join("none/model.gguf"), &none, &[]).expect_err("no such folder");
    assert!(matches!(error.inner(), Error::Io { .. }), "{error}");
    use std::os::unix::fs::PermissionsExt;
    let path = folder.path().join("model.gguf");
    write(&path, &none, &[]).unwrap();
    let plain = folder.path().join("plain");
    std::fs::write(&plain, b"").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&plain), "permissions differ from those of any new file");
}
