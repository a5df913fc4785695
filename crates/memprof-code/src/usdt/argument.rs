//! Parses the location of a probe's argument: `SIZE@OPERAND`, in the processor's assembler syntax.

/// An argument of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Size in bits: 8, 16, 32 or 64.
    pub bits: u8,
    /// Whether the argument is signed.
    pub signed: bool,
    /// Location of the argument.
    pub place: ArgumentLocation,
}

/// Location of an argument. Registers are identified by their offset in the kernel's `struct pt_regs`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentLocation {
    /// A constant.
    Constant(i64),
    /// In a register.
    Register(u32),
    /// In memory, at the value of a register plus an offset in bytes.
    Memory(u32, i64),
}

impl Argument {
    /// Parses an argument; `None` if its operand is of an unsupported kind (an index register, a symbol), which no
    /// sampler needs.
    pub fn parse(text: &str, arm: bool) -> Option<Argument> {
        let (size, operand) = text.split_once('@')?;
        let (signed, size) = match size.strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, size),
        };
        let bits = match size {
            "1" => 8,
            "2" => 16,
            "4" => 32,
            "8" => 64,
            _ => return None,
        };
        let place = if arm { arm64(operand) } else { x86_64(operand) };
        Some(Argument {
            bits,
            signed,
            place: place?,
        })
    }
}

/// `$5`, `%rax`, `-8(%rbp)`.
fn x86_64(operand: &str) -> Option<ArgumentLocation> {
    if let Some(constant) = operand.strip_prefix('$') {
        return constant.parse().ok().map(ArgumentLocation::Constant);
    }
    if let Some(register) = operand.strip_prefix('%') {
        return x86_64_register(register).map(ArgumentLocation::Register);
    }
    let (offset, register) = operand.split_once('(')?;
    let register = register.strip_prefix('%')?.strip_suffix(')')?;
    let offset = if offset.is_empty() {
        0
    } else {
        offset.parse().ok()?
    };
    x86_64_register(register).map(|register| ArgumentLocation::Memory(register, offset))
}

/// The offset of a register in `struct pt_regs`. For the low part of a register, the offset of the whole register.
fn x86_64_register(name: &str) -> Option<u32> {
    const NAMES: [[&str; 4]; 17] = [
        ["r15", "r15d", "r15w", "r15b"],
        ["r14", "r14d", "r14w", "r14b"],
        ["r13", "r13d", "r13w", "r13b"],
        ["r12", "r12d", "r12w", "r12b"],
        ["rbp", "ebp", "bp", "bpl"],
        ["rbx", "ebx", "bx", "bl"],
        ["r11", "r11d", "r11w", "r11b"],
        ["r10", "r10d", "r10w", "r10b"],
        ["r9", "r9d", "r9w", "r9b"],
        ["r8", "r8d", "r8w", "r8b"],
        ["rax", "eax", "ax", "al"],
        ["rcx", "ecx", "cx", "cl"],
        ["rdx", "edx", "dx", "dl"],
        ["rsi", "esi", "si", "sil"],
        ["rdi", "edi", "di", "dil"],
        ["", "", "", ""], // orig_rax
        ["rip", "eip", "ip", ""],
    ];
    /// Offset of `rsp`, after `rip`, `cs` and `eflags`.
    const RSP: u32 = 19 * 8;
    if ["rsp", "esp", "sp", "spl"].contains(&name) {
        return Some(RSP);
    }
    let at = NAMES
        .iter()
        .position(|names| !name.is_empty() && names.contains(&name))?;
    Some(at as u32 * 8)
}

/// `5`, `x0`, `[sp,16]`.
fn arm64(operand: &str) -> Option<ArgumentLocation> {
    if let Some(inside) = operand.strip_prefix('[') {
        let inside = inside.strip_suffix(']')?;
        let (register, offset) = inside.split_once(',').unwrap_or((inside, "0"));
        let offset = offset.trim().trim_start_matches('#').parse().ok()?;
        return arm64_register(register).map(|register| ArgumentLocation::Memory(register, offset));
    }
    match arm64_register(operand) {
        Some(register) => Some(ArgumentLocation::Register(register)),
        None => operand
            .trim_start_matches('#')
            .parse()
            .ok()
            .map(ArgumentLocation::Constant),
    }
}

fn arm64_register(name: &str) -> Option<u32> {
    if name == "sp" {
        return Some(31 * 8);
    }
    let number: u32 = name.strip_prefix(['x', 'w'])?.parse().ok()?;
    (number < 31).then_some(number * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_both_processors_are_understood() {
        let parse = |text, arm| Argument::parse(text, arm);
        let at = |bits, signed, place| {
            Some(Argument {
                bits,
                signed,
                place,
            })
        };
        assert_eq!(
            parse("8@%rdi", false),
            at(64, false, ArgumentLocation::Register(112))
        );
        assert_eq!(
            parse("-4@%r8d", false),
            at(32, true, ArgumentLocation::Register(72))
        );
        assert_eq!(
            parse("8@%rsp", false),
            at(64, false, ArgumentLocation::Register(152))
        );
        let stack = ArgumentLocation::Memory(32, -16);
        assert_eq!(parse("8@-16(%rbp)", false), at(64, false, stack));
        assert_eq!(
            parse("1@(%rax)", false),
            at(8, false, ArgumentLocation::Memory(80, 0))
        );
        assert_eq!(
            parse("-2@$-7", false),
            at(16, true, ArgumentLocation::Constant(-7))
        );
        assert_eq!(
            parse("8@x1", true),
            at(64, false, ArgumentLocation::Register(8))
        );
        assert_eq!(
            parse("4@w30", true),
            at(32, false, ArgumentLocation::Register(240))
        );
        assert_eq!(
            parse("8@[sp,24]", true),
            at(64, false, ArgumentLocation::Memory(248, 24))
        );
        assert_eq!(
            parse("8@[x2]", true),
            at(64, false, ArgumentLocation::Memory(16, 0))
        );
        assert_eq!(
            parse("8@5", true),
            at(64, false, ArgumentLocation::Constant(5))
        );
        for text in [
            "",
            "8",
            "@",
            "8@",
            "3@%rax",
            "8@%xmm0",
            "8@%",
            "8@(%rax,%rbx,8)",
            "8@foo(%rip",
            "8@$",
            "8@$0x5",
            "8@var(%rip)",
        ] {
            assert_eq!(parse(text, false), None, "{text}");
        }
        for text in ["8@x31", "8@[x0", "8@[x0,x1]", "8@d0", "8@-"] {
            assert_eq!(parse(text, true), None, "{text}");
        }
    }
}
