//! The format table agrees with itself and with the stored geometry.

mod common;

use common::{bytes, stem};
use puna_quant::{DType, FORMATS, FloatField, grids};

#[test]
fn ids_and_names_are_unique_and_found() {
    assert_eq!(FORMATS.len(), 35);
    for pair in FORMATS.windows(2) {
        assert!(pair[0].dtype.id() < pair[1].dtype.id(), "{} before {}", pair[0].name, pair[1].name);
    }
    for format in FORMATS {
        assert_eq!(format.dtype.format().name, format.name);
        assert_eq!(DType::from_id(format.dtype.id()), Some(format.dtype));
        assert_eq!(DType::from_name(format.name), Some(format.dtype));
        assert_eq!(DType::from_name(&stem(format.dtype)), Some(format.dtype));
        assert_eq!(format!("{:?}", format.dtype).to_lowercase(), format.name.to_lowercase());
        assert_eq!(format.dtype.to_string(), format.name);
    }
    assert_eq!(DType::from_name("q4_2"), None);
}

#[test]
fn removed_and_unknown_ids_are_no_formats() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 255, 256, u32::MAX] {
        assert_eq!(DType::from_id(id), None, "{id}");
    }
    assert_eq!((0..1000).filter_map(DType::from_id).count(), FORMATS.len());
}

#[test]
fn geometry_equals_the_stored_table() {
    let table: serde_json::Value = serde_json::from_slice(&bytes("quant/table.json")).expect("JSON");
    let types = table["types"].as_object().expect("types");
    assert_eq!(types.len(), 26);
    for (name, row) in types {
        let format = DType::from_name(name).expect("known name").format();
        assert_eq!(row["id"], format.dtype.id(), "{name}");
        assert_eq!(row["block"], format.block, "{name}");
        assert_eq!(row["bytes"], format.bytes, "{name}");
    }
}

#[test]
fn sizes_are_whole_blocks_without_overflow() {
    assert_eq!(DType::Q4_K.bytes_for(512), Some(288));
    assert_eq!(DType::Q4_K.bytes_for(0), Some(0));
    assert_eq!(DType::Q4_K.bytes_for(511), None);
    assert_eq!(DType::F32.bytes_for(u64::MAX), None);
}

#[test]
fn float_fields_lie_inside_the_block() {
    for format in FORMATS {
        for field in format.floats {
            let end = match *field {
                FloatField::E8M0(offset) => offset + 1,
                FloatField::F16(offset) | FloatField::BF16(offset) => offset + 2,
                FloatField::F32(offset) => offset + 4,
                FloatField::F64(offset) | FloatField::SplitF16(offset) => offset + 8,
            };
            assert!(end <= format.bytes, "{}: {field:?}", format.name);
        }
    }
}

#[test]
fn sign_indices_expand_to_an_even_number_of_signs() {
    let mut seen = std::collections::HashSet::new();
    for index in 0..128 {
        let signs = grids::signs(index);
        assert_eq!(signs & 0x7f, index);
        assert_eq!(signs.count_ones() % 2, 0);
        assert_eq!(grids::signs(index | 0x80), signs);
        assert!(seen.insert(signs));
    }
}

#[test]
fn every_lattice_point_equals_the_stored_one() {
    let grids: [(&str, &[i8]); 6] = [
        ("IQ1_S", grids::IQ1.as_flattened()),
        ("IQ2_XXS", grids::IQ2_XXS.as_flattened()),
        ("IQ2_XS", grids::IQ2_XS.as_flattened()),
        ("IQ2_S", grids::IQ2_S.as_flattened()),
        ("IQ3_XXS", grids::IQ3_XXS.as_flattened()),
        ("IQ3_S", grids::IQ3_S.as_flattened()),
    ];
    for (name, grid) in grids {
        let expected: Vec<i8> =
            bytes(&format!("quant-grids/{name}.i8")).into_iter().map(|byte| byte as i8).collect();
        assert!(grid == expected, "{name}");
    }
}
