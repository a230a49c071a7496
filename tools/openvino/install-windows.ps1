<#
.SYNOPSIS
Sets the program up with OpenVINO on Windows, in one go.
.DESCRIPTION
OpenVINO in a Python environment of its own, the program built from these sources. Python 3.10 or later and Rust must be
installed. The shim needs a C++ compiler and is not built here: without it caches are kept by the host.
.PARAMETER Folder
Where it goes.
.PARAMETER OpenVinoVersion
Version of OpenVINO.
#>
[CmdletBinding()]
param(
    [string] $Folder = (Join-Path $env:LOCALAPPDATA 'llama-openvino'),
    [string] $OpenVinoVersion = '2026.4.1'
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

function Invoke-Checked {
    param([string] $Program, [string[]] $Arguments)
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) {
        throw "$Program ended with $LASTEXITCODE"
    }
}

foreach ($needed in 'python', 'cargo') {
    if (-not (Get-Command $needed -ErrorAction SilentlyContinue)) {
        throw "$needed is missing: winget install Python.Python.3.12, winget install Rustlang.Rustup"
    }
}

$source = Resolve-Path (Join-Path $PSScriptRoot '..\..')
$environment = Join-Path $Folder 'environment'
$bin = Join-Path $Folder 'bin'

Write-Output "OpenVINO $OpenVinoVersion"
Invoke-Checked 'python' @('-m', 'venv', $environment)
$python = Join-Path $environment 'Scripts\python.exe'
Invoke-Checked $python @('-m', 'pip', 'install', '--quiet', "openvino==$OpenVinoVersion")
$library = & $python -c 'import openvino, os; print(os.path.dirname(openvino.__file__))'

Write-Output 'The program'
$manifest = Join-Path $source 'Cargo.toml'
Invoke-Checked 'cargo' @('build', '--release', '--locked', '-p', 'puna-llama', '--manifest-path', $manifest)
$target = if ($env:CARGO_TARGET_DIR) { $env:CARGO_TARGET_DIR } else { Join-Path $source 'target' }
New-Item -ItemType Directory -Force -Path $bin | Out-Null
Copy-Item -Force (Join-Path $target 'release\llama.exe') $bin

@(
    "`$env:OPENVINO_DIR = '$library'"
    "`$env:PATH = '$bin;' + `$env:PATH"
) | Set-Content -Path (Join-Path $Folder 'setup.ps1')

Write-Output @"
Done. In a new window:
  . '$Folder\setup.ps1'
  llama devices
  `$env:GGML_OPENVINO_DEVICE = 'CPU'   # or GPU, NPU
  llama cli -m model.gguf --device OPENVINO0
"@
