//! Which coding a tensor gets: by its format, what it is used for, and the device.

use puna_quant::DType;

use super::{Coding, Recode};
use crate::ir::Element;

/// Kinds of devices that want weights in different forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// A processor that multiplies codes with floats.
    #[default]
    Cpu,
    /// A processor whose plugin turns activations into 8-bit integers, group by group. Then products are several times
    /// as fast, but only with zero points that are integers, and groups of 32 or more.
    CpuDynamic,
    /// A processor that multiplies tiles of bf16 numbers, with many rows.
    CpuTiles,
    /// Graphics.
    Gpu,
    /// A neural processing unit.
    Npu,
}

impl Kind {
    /// Of a device of the library's. `dynamic`: the processor quantises activations.
    pub fn of(plugin: &str, dynamic: bool) -> Self {
        match plugin.split('.').next() {
            Some("GPU") => Self::Gpu,
            Some("NPU") => Self::Npu,
            _ if dynamic => Self::CpuDynamic,
            _ => Self::Cpu,
        }
    }
}

/// What a tensor is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Rows are looked up in it.
    Table,
    /// It makes logits.
    Output,
    /// Any other product.
    Factor,
}

/// Group of formats that are decoded and written again.
const RECODED_GROUP: usize = 32;
/// Group of the four-bit integers that NPUs multiply fastest.
const NPU_GROUP: usize = 128;

impl Coding {
    /// How a tensor of this format with rows of `width` elements is written.
    pub fn of(dtype: DType, width: usize, role: Use, kind: Kind) -> Self {
        let coding = Self::with_halves(dtype, width, role, kind);
        match kind {
            Kind::Gpu | Kind::Npu => coding,
            Kind::Cpu | Kind::CpuDynamic | Kind::CpuTiles => coding.with_singles(),
        }
    }

    fn with_halves(dtype: DType, width: usize, role: Use, kind: Kind) -> Self {
        if (kind, role) == (Kind::CpuTiles, Use::Factor) {
            return Self::numbers(dtype, Element::BF16, width);
        }
        if let Some(element) = float(dtype) {
            return Self::numbers(dtype, element, width);
        }
        let per_row = Self::signed(dtype, Element::I8, width, width);
        match (kind, role) {
            (Kind::Npu, Use::Table) if dtype == DType::Q6_K => Self::numbers(dtype, Element::F16, width),
            (Kind::Gpu | Kind::Npu, Use::Table | Use::Output) => per_row,
            (Kind::Npu, Use::Factor) if width.is_multiple_of(NPU_GROUP) => {
                Self::signed(dtype, Element::I4, NPU_GROUP, width)
            }
            (Kind::Npu, Use::Factor) => per_row,
            (Kind::Gpu, Use::Factor) if matches!(dtype, DType::Q5_K | DType::Q6_K) => per_row,
            (_, Use::Table) => Self::kept(dtype, width).in_bytes(),
            (Kind::Cpu | Kind::Gpu, _) => Self::kept(dtype, width),
            (Kind::CpuDynamic | Kind::CpuTiles, _) => {
                let kept = Self::kept(dtype, width);
                if kept.zeros.is_some() {
                    let recode = Recode::Fine;
                    return Self { element: Element::U8, zeros: Some(Element::U8), recode, ..kept };
                }
                match kept.group < RECODED_GROUP && width.is_multiple_of(RECODED_GROUP) {
                    true => Self::signed(dtype, Element::I8, RECODED_GROUP, width),
                    false => kept,
                }
            }
        }
    }

    /// The format's own codes where it has integers with a scale per group, else integers of eight bits.
    fn kept(dtype: DType, width: usize) -> Self {
        let (element, group, zeros) = match dtype {
            DType::Q4_0 => (Element::I4, 32, None),
            DType::Q4_1 | DType::Q4_K => (Element::U4, 32, Some(Element::F16)),
            DType::Q5_1 | DType::Q5_K => (Element::U8, 32, Some(Element::F16)),
            DType::Q5_0 | DType::Q8_0 => (Element::I8, 32, None),
            DType::Q6_K => (Element::I8, 16, None),
            // A width that is no multiple of 32 has one group.
            _ if width.is_multiple_of(RECODED_GROUP) => {
                return Self::signed(dtype, Element::I8, RECODED_GROUP, width);
            }
            _ => return Self::signed(dtype, Element::I8, width, width),
        };
        Self { dtype, element, group, scales: Element::F16, zeros, recode: Recode::Kept, width }
    }

    fn signed(dtype: DType, element: Element, group: usize, width: usize) -> Self {
        Self { dtype, element, group, scales: Element::F16, zeros: None, recode: Recode::Signed, width }
    }

    /// Plain numbers.
    fn numbers(dtype: DType, element: Element, width: usize) -> Self {
        Self { dtype, element, group: 1, scales: Element::F16, zeros: None, recode: Recode::Kept, width }
    }

    /// The same with scales and zero points that processors take as they are: those in half precision they would turn
    /// into numbers of single precision and keep both.
    fn with_singles(mut self) -> Self {
        self.scales = Element::F32;
        if self.zeros == Some(Element::F16) {
            self.zeros = Some(Element::F32);
        }
        self
    }

    /// The same with codes of whole bytes, as tables need them.
    fn in_bytes(mut self) -> Self {
        self.element = match self.element {
            Element::I4 => Element::I8,
            Element::U4 => Element::U8,
            other => other,
        };
        self
    }
}

/// The element type of formats that are written as plain numbers.
fn float(dtype: DType) -> Option<Element> {
    match dtype {
        DType::F32 | DType::F64 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Some(Element::F32),
        DType::F16 => Some(Element::F16),
        DType::BF16 => Some(Element::BF16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_kinds() {
        for (plugin, dynamic, expected) in [
            ("CPU", true, Kind::CpuDynamic),
            ("CPU", false, Kind::Cpu),
            ("GPU.1", true, Kind::Gpu),
            ("NPU", false, Kind::Npu),
        ] {
            assert_eq!(Kind::of(plugin, dynamic), expected, "{plugin}");
        }
    }

    #[test]
    fn codings_follow_format_use_and_device() {
        use Element::{BF16, F16, F32, I4, I8, U4, U8};
        use Kind::{Cpu, CpuDynamic, CpuTiles, Gpu, Npu};
        use Use::{Factor, Output, Table};
        // Rows have 512 elements. Codes, elements of a group, zero points.
        for (dtype, role, kind, expected) in [
            (DType::Q4_0, Factor, Cpu, (I4, 32, None)),
            (DType::Q4_0, Factor, CpuDynamic, (I4, 32, None)),
            (DType::Q4_0, Factor, Npu, (I4, 128, None)),
            (DType::Q4_1, Factor, Cpu, (U4, 32, Some(F32))),
            (DType::Q4_K, Factor, CpuDynamic, (U8, 32, Some(U8))),
            (DType::Q4_K, Factor, Gpu, (U4, 32, Some(F16))),
            (DType::Q4_K, Factor, Npu, (I4, 128, None)),
            (DType::Q5_K, Factor, Gpu, (I8, 512, None)),
            (DType::Q5_1, Factor, CpuDynamic, (U8, 32, Some(U8))),
            (DType::Q6_K, Factor, Cpu, (I8, 16, None)),
            (DType::Q6_K, Factor, CpuDynamic, (I8, 32, None)),
            (DType::Q6_K, Factor, Gpu, (I8, 512, None)),
            (DType::Q6_K, Table, Npu, (F16, 1, None)),
            (DType::Q6_K, Output, Npu, (I8, 512, None)),
            (DType::Q6_K, Table, CpuDynamic, (I8, 16, None)),
            (DType::Q4_K, Table, Gpu, (I8, 512, None)),
            (DType::Q4_1, Table, CpuDynamic, (U8, 32, Some(F32))),
            (DType::Q8_0, Output, Cpu, (I8, 32, None)),
            (DType::Q8_0, Output, Gpu, (I8, 512, None)),
            (DType::IQ2_XXS, Factor, Gpu, (I8, 32, None)),
            (DType::BF16, Output, Npu, (BF16, 1, None)),
            (DType::Q4_K, Factor, CpuTiles, (BF16, 1, None)),
            (DType::Q4_K, Output, CpuTiles, (U8, 32, Some(U8))),
            (DType::Q4_K, Table, CpuTiles, (U8, 32, Some(F32))),
            (DType::F16, Factor, CpuTiles, (BF16, 1, None)),
        ] {
            let coding = Coding::of(dtype, 512, role, kind);
            assert_eq!((coding.element, coding.group, coding.zeros), expected, "{dtype} {role:?} {kind:?}");
            let scales = if matches!(kind, Gpu | Npu) { F16 } else { F32 };
            assert_eq!(coding.scales, scales, "{dtype} {role:?} {kind:?}");
        }
        // An NPU's groups need a width that they divide; rows that nothing divides are one group.
        assert_eq!(Coding::of(DType::Q4_0, 96, Factor, Npu).group, 96);
        assert_eq!(Coding::of(DType::Q1_0, 40, Factor, CpuDynamic).group, 40);
    }
}
